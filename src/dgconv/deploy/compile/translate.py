"""From the calls that a model makes to steps, one by one; :mod:`~dgconv.deploy.compile.fuse` then joins them."""

import copy
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate, map_arg

from ..calls import (
    ELEMENTWISE,
    FRESH,
    IN_PLACE,
    SHAPE_KEEPING,
    Slot,
    Together,
    TorchCall,
    as_function,
    called,
    name_of,
    takes_inplace,
    to_planes,
)
from ..graph import Graph, Step, Torch, values_read
from . import function_rules, module_rules
from .builder import Builder, Grid, NotNative, Value, broadcast
from .trace import Untranslatable, Whole

ONLY_LOOKS = (
    Tensor.size,
    operator.getitem,
    Tensor.expand_as,
    Tensor.unsqueeze,
    to_planes,
)  # of no effect if nobody uses the result


@dataclass
class Translation:
    graph: Graph
    changes_input: bool  # the model writes into the tensor it is given


def translate(calls: fx.Graph, model: Whole, left: dict[nn.Module, str]) -> Translation:
    """Steps for the calls of a traced model; ``left`` says why some modules could not be followed."""
    return _Translator(calls, model, left).run()


class _Translator:
    def __init__(self, calls: fx.Graph, model: Whole, left: dict[nn.Module, str]) -> None:
        self.model, self.left, self.builder = model, left, Builder()
        self.nodes = {node: position for position, node in enumerate(calls.nodes)}
        self.results: dict[fx.Node, Any] = {}  # a Value, a constant, or a tuple or list of them
        self.relatives: dict[str, set[str]] = {}  # values that may share memory
        self.changes_input = False

    def run(self) -> Translation:
        for node in self.nodes:
            if node.op == "placeholder":
                self.input = self.builder.new_name("input")
                self.results[node] = Value(self.input, "planes", grid=Grid(self.input))
            elif node.op == "get_attr":
                self.results[node] = operator.attrgetter(str(node.target))(self.model)
            elif node.op == "output":
                result = self._result(*self._resolve(node.args))
            else:
                self._translate(node)
        steps = _without_unused(self.builder.steps, result.name)
        return Translation(Graph(self.input, result.name, steps), self.changes_input)

    def _result(self, parts: tuple[Any, ...]) -> Value:
        """The only part there is, or all of them put together as the model does."""
        if self.model.result == 0 and isinstance(parts[0], Value):
            return replace(parts[0], name=self._as_torch_has_it(parts[0]))
        if not (values := _leaves(parts, Value)):
            raise Untranslatable("it returns nothing that depends on the image")
        self.builder.label = "output"
        return Value(self._torch(Together(self.model.result), parts, {}, values, "it returns more than one tensor"))

    def _resolve(self, arguments: Any) -> Any:
        return map_arg(arguments, lambda node: self.results[node])

    def _translate(self, node: fx.Node) -> None:
        args, kwargs = self._resolve(node.args), dict(self._resolve(node.kwargs))
        function, in_place = self._function(node)
        if function is getattr and args[1] == "shape":
            function, args = Tensor.size, args[:1]
        if takes_inplace(function):
            bound = inspect.signature(function).bind(*args, **kwargs)
            in_place |= bool(bound.arguments.get("inplace"))
            bound.arguments["inplace"] = False
            args, kwargs = bound.args, bound.kwargs
        if kwargs.get("out") is not None:
            raise Untranslatable(f"{name_of(function)} writes into a tensor given as 'out'")
        self.builder.label = _label(node, function)
        values = _leaves((args, kwargs), Value)
        if not values:
            self.results[node] = self._constant(function, args, kwargs)
        else:
            self.results[node] = result = self._step(function, args, kwargs, values)
            if isinstance(result, Value) and result.rows is not None:
                self._share_memory(result.name, result.rows)
            while self.builder.views:
                self._share_memory(*self.builder.views.pop())
        if in_place:
            self._rebind(node, args[0], self.results[node])

    def _function(self, node: fx.Node) -> tuple[Callable[..., Any], bool]:
        """What is called, in the form that leaves its arguments alone, and whether it was the form that does not."""
        if node.op == "call_module":
            module: Any = self.model.get_submodule(str(node.target))
            if getattr(module, "inplace", False) is not True or module in self.left:
                return module, False
            module = copy.copy(module)
            module.inplace = False
            return module, True
        function: Any = node.target
        if node.op == "call_method":
            function = getattr(Tensor, str(node.target), None)
        name = getattr(function, "__name__", "")
        if function in IN_PLACE:
            return IN_PLACE[function], True
        if name.endswith("_") and not name.endswith("__"):
            owner = Tensor if node.op == "call_method" else F if hasattr(F, name) else torch
            function = getattr(owner, name[:-1], None)
        if not callable(function) or function is operator.setitem:
            raise Untranslatable(f"it calls {node.target}, of which there is no form that leaves its arguments alone")
        return function, name.endswith("_") and not name.endswith("__")

    def _constant(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A result that is the same for every image."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise Untranslatable(f"{name_of(function)} fails: {error}") from None

    def _step(self, function: Callable[..., Any], args: Any, kwargs: Any, values: list[Value]) -> Any:
        try:
            return self._native(function, args, kwargs)
        except NotNative as refusal:
            takes_one = len(args) + len(kwargs) == 1  # what else a layer is given its function may not know
            if isinstance(function, nn.Module) and takes_one and (plain := as_function(function)):
                function, kwargs = plain[0], kwargs | plain[1]
            name = self._torch(function, args, kwargs, values, refusal.reason)
            like = refusal.like or self._shape(function, args, kwargs, values) or Value("")
            return replace(like, name=name, rows=None, grid=like.grid or Grid(name))

    def _torch(self, function: Callable[..., Any], args: Any, kwargs: Any, values: list[Value], reason: str) -> str:
        given = {value: self._as_torch_has_it(value) for value in values}
        names = list(dict.fromkeys(given.values()))
        slots = {name: Slot(index) for index, name in enumerate(names)}
        call = TorchCall(
            function,
            *map_aggregate((args, kwargs), lambda leaf: slots[given[leaf]] if isinstance(leaf, Value) else leaf),
        )
        name = self.builder.add(Torch(names, "", call, reason, may_change_inputs=function in self.left))
        if function not in FRESH.values():
            self._share_memory(name, *names)
        return name

    def _as_torch_has_it(self, value: Value) -> str:
        """The name under which torch finds a value, whose channels are last if it thinks so."""
        if value.kind != "pixels":
            return value.name
        call = TorchCall(Tensor.permute, (Slot(0), 0, 2, 3, 1), {})
        name = self.builder.add(Torch([value.name], "", call, "what reads it is left to torch"))
        self._share_memory(name, value.name)
        return name

    def _share_memory(self, *names: str) -> None:
        family = set[str]().union(*(self.relatives.get(name, {name}) for name in names))
        self.relatives.update(dict.fromkeys(family, family))

    def _native(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if isinstance(function, nn.Module):
            if function in self.left:
                raise NotNative(self.left[function], self._planes_of(function))
            rule, first = module_rules.rule_for(function), (self.builder, function)
        else:
            rule, first = function_rules.rule_for(function), (self.builder,)  # type: ignore[assignment]
        if rule is None:
            raise NotNative(f"no native step for {name_of(function)}")
        try:
            inspect.signature(rule).bind(*first, *args, **kwargs)
        except TypeError:
            raise NotNative(f"no native step for {name_of(function)} with these arguments") from None
        return rule(*first, *args, **kwargs)

    def _planes_of(self, module: nn.Module) -> Value | None:
        """What any convolution gives."""
        return Value("", "planes", module.out_channels) if isinstance(module, nn.Conv2d) else None

    def _shape(self, function: Callable[..., Any], args: Any, kwargs: Any, values: list[Value]) -> Value | None:
        has_shape = any(tensor.dim() > 0 for tensor in _leaves((args, kwargs), Tensor))
        is_elementwise = function in ELEMENTWISE.values() and not has_shape
        return broadcast(values) if is_elementwise or function in SHAPE_KEEPING.values() else None

    def _rebind(self, node: fx.Node, changed: Any, result: Any) -> None:
        """Renames a tensor after a change in place: whoever reads it by its other names reads the new one."""
        if isinstance(changed, int | float):
            return
        if not isinstance(changed, Value):
            raise Untranslatable("it changes a parameter, a buffer or several tensors in place")
        if result is changed or changed.kind in ("shape", "batch size"):  # a dropout that does nothing; numbers
            return
        family = self.relatives.get(changed.name, {changed.name})
        self.changes_input |= self.input in family
        out_of_reach = family - {changed.name, getattr(result, "name", "")}
        if changed.kind == "other":  # perhaps a number, which keeps its value under its other names
            out_of_reach.add(changed.name)
        for earlier, value in self.results.items():
            if not isinstance(value, Value) or earlier is node:
                continue
            if value.name in out_of_reach and any(self.nodes[user] > self.nodes[node] for user in earlier.users):
                raise Untranslatable("it changes a tensor in place that it still uses under another name")
            if value.name == changed.name:
                if value.kind != changed.kind and any(self.nodes[user] > self.nodes[node] for user in earlier.users):
                    raise Untranslatable("it changes a tensor in place that it still uses in another shape")
                self.results[earlier] = result


def _leaves(arguments: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    map_aggregate(arguments, lambda leaf: found.append(leaf) if isinstance(leaf, kind) else None)
    return found


def _label(node: fx.Node, function: Callable[..., Any]) -> str:
    """The path of the layer, or of the module in which a function was called, and the function."""
    if node.op == "call_module":
        path = str(node.target)
    else:
        stack = [name for name, _ in node.meta.get("nn_module_stack", {}).values()]
        path = f"{stack[-1] if stack else ''}.{name_of(function).rpartition('.')[2]}"
    return path.removeprefix("model").lstrip(".") or type(function).__name__


def _without_unused(steps: list[Step], output: str) -> list[Step]:
    """Leaves out the steps that nobody needs; torch's are kept unless they only look."""
    needed, kept = {output}, []
    for step in reversed(steps):
        only_looks = not isinstance(step, Torch) or called(step.function) in ONLY_LOOKS
        if step.output in needed or not only_looks:
            kept.append(step)
            needed.update(values_read(step))
    return kept[::-1]
