"""The calls that a model makes, in order, found by running it on a stand-in for the image (``torch.fx``)."""

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ...errors import UserError
from ...layers import passing_overflow
from ..calls import IN_PLACE
from .builder import has_forward_hooks
from .module_rules import rule_for


class Untranslatable(Exception):
    """The model as a whole cannot become a graph; the message says why."""


class Whole(nn.Module):
    """Holds a model, so that the model is traced like any of its layers.

    Returns the parts of its result in a row, and remembers what they are parts of: ``result`` has their numbers in it.
    """

    result: Any

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> tuple[Any, ...]:
        parts, structure = pytree.tree_flatten(self.model(x))
        self.result = pytree.tree_unflatten(list(range(len(parts))), structure)
        for part in parts:
            if not (isinstance(part, fx.Proxy | Tensor | int | float | str | None) or is_dataclass(part)):
                raise Untranslatable(f"it returns a {type(part).__name__}, which torch.fx does not know")
        return tuple(parts)


@dataclass
class Calls:
    """``left`` are modules whose code could not be followed, and the reason: they are single calls. ``is_of_one_size``
    tells that code was followed as it runs for images of the example's size."""

    graph: fx.Graph
    left: dict[nn.Module, str]
    is_of_one_size: bool


def trace(model: Whole, example: Tensor | None = None) -> Calls:
    """The calls of a model. Code that branches on sizes can be followed if there is an example that has them."""
    with passing_overflow():  # an example has sizes; whatever its numbers come to
        tracer = _Tracer({} if example is None else _inputs(model.model, example))
        return Calls(tracer.trace(model), tracer.left, tracer.is_of_one_size)


def _inputs(model: nn.Module, example: Tensor) -> dict[nn.Module, tuple[Any, ...]]:
    """What each module is called with for an example; those that are called more than once are left out."""
    found: dict[nn.Module, list[tuple[Any, ...]]] = {}

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        found.setdefault(module, []).append(pytree.tree_map_only(Tensor, Tensor.clone, args))

    parts = [part for part in model.modules() if not isinstance(part, torch.jit.ScriptModule)]
    handles = [part.register_forward_pre_hook(note) for part in parts]
    state = _State(model)
    try:
        model(example.clone())
    except Exception as error:  # of any kind: it is the user's code
        raise UserError(f"the model does not take the example: {_first_line(error)}") from error
    finally:
        state.restore()
        for handle in handles:
            handle.remove()
    return {module: calls[0] for module, calls in found.items() if len(calls) == 1}


class _Proxy(fx.Proxy):
    """The stand-in. ``x += y`` changes x, and whoever else holds it sees that: fx itself would record ``x + y``."""

    def __getattr__(self, name: str) -> Any:
        value = self.tracer.value_of(self)  # type: ignore[attr-defined]
        if name == "shape" and isinstance(value, Tensor):
            return self.tracer.sizes(self, value)  # type: ignore[attr-defined]
        return value.dim() if name == "ndim" and isinstance(value, Tensor) else super().__getattr__(name)


def _in_place(function: Callable[..., Any]) -> Callable[[_Proxy, Any], fx.Proxy]:
    return lambda x, y: x.tracer.create_proxy("call_function", function, (x, y), {})


for _function in IN_PLACE:
    setattr(_Proxy, f"__{_function.__name__}__", _in_place(_function))


class _Tracer(fx.Tracer):
    """Follows the code of every module down to the layers that have a rule, and those that cannot be followed."""

    def __init__(self, inputs: dict[nn.Module, tuple[Any, ...]]) -> None:
        super().__init__(param_shapes_constant=True)
        self.left: dict[nn.Module, str] = {}
        self.inputs = inputs  # of modules, for the example
        self.values: dict[fx.Node, Any] | None = None  # for the example, where they are needed
        self.is_running = False  # the code itself, to find them
        self.is_of_one_size = False

    def value_of(self, proxy: fx.Proxy) -> Any:
        return None if self.values is None else self.values.get(proxy.node)

    def sizes(self, proxy: fx.Proxy, value: Tensor) -> tuple[Any, ...]:
        """Of the example; how many images there are is left open."""
        return (super().create_proxy("call_method", "size", (proxy, 0), {}), *value.shape[1:])

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **options: Any) -> Any:
        if self.values is None:
            return super().create_proxy(kind, target, args, kwargs, *more, **options)
        value = args and isinstance(args[0], fx.Proxy) and self.value_of(args[0])
        if kind == "call_method" and isinstance(value, Tensor) and target in ("size", "dim"):
            if target == "dim":
                return value.dim()
            sizes = self.sizes(args[0], value)
            return sizes[args[1]] if len(args) > 1 else sizes
        proxy = super().create_proxy(kind, target, args, kwargs, *more, **options)
        self.is_running = True
        try:
            self.values[proxy.node] = self._run(kind, target, *self._values((args, kwargs)))
        finally:
            self.is_running = False
        return proxy

    def _values(self, arguments: Any) -> Any:
        assert self.values is not None
        values = self.values

        def of(leaf: Any) -> Any:
            if isinstance(leaf, fx.Proxy) and leaf.node.target == "size":
                return 1
            return values[leaf.node] if isinstance(leaf, fx.Proxy) else leaf

        return pytree.tree_map(of, arguments)

    def _run(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        match kind:
            case "get_attr":
                return attrgetter(target)(self.root)
            case "call_module":
                return self.root.get_submodule(target)(*args, **kwargs)
            case "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        if self.is_running:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache if self.values is None else {})

    def to_bool(self, obj: fx.Proxy) -> bool:
        value = self.value_of(obj)
        return bool(value) if isinstance(value, bool | int | float) else super().to_bool(obj)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if has_forward_hooks(m):
            self.left.setdefault(m, "has forward hooks")
        if isinstance(m, torch.jit.ScriptModule):
            self.left.setdefault(m, "is TorchScript")
        return m in self.left or rule_for(m) is not None or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.is_running:
            return forward(*args, **kwargs)
        nodes_before, stack_before, state = len(self.graph.nodes), dict(self.module_stack), _State(m)

        def follow() -> Any:
            result = super(_Tracer, self).call_module(m, forward, args, kwargs)
            if name := state.restore():
                raise Untranslatable(f"it changes its own {name!r}")
            return result

        def take_back() -> None:
            state.restore()
            for node in list(self.graph.nodes)[: nodes_before - 1 : -1]:
                self.graph.erase_node(node)
            self.module_stack.clear()
            self.module_stack.update(stack_before)

        try:
            return follow()
        except Exception as error:
            # Whatever stopped the trace in here, a branch on the values most often: take back what was recorded of
            # this module and record the call of it instead; or follow it as it runs for the example.
            take_back()
            known = self.inputs.get(m, ())
            if self.values is None and len(known) == len(args) and not kwargs:
                given = zip(args, known, strict=True)
                self.values = {arg.node: value for arg, value in given if isinstance(arg, fx.Proxy)}
                left = dict(self.left)
                try:
                    result = follow()
                    self.is_of_one_size = True
                    return result
                except Exception:  # it branches on something else
                    take_back()
                    self.left = left
                finally:
                    self.values = None
            self.left[m] = f"its code cannot be followed: {_first_line(error)}"
            return super().call_module(m, forward, args, kwargs)


class _State:
    """What a module may change of itself as it runs, and then depend on: its buffers, and numbers that it counts."""

    def __init__(self, module: nn.Module) -> None:
        parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
        buffers = [(part, name, buffer) for part in parts for name, buffer in part._buffers.items()]
        self.buffers = [(part, name, buffer, buffer.clone()) for part, name, buffer in buffers if buffer is not None]
        numbers = [(part, name, value) for part in parts for name, value in vars(part).items()]
        self.numbers = [(part, name, value) for part, name, value in numbers if type(value) in (int, float)]

    def restore(self) -> str | None:
        """Puts everything back as it was; the name of something that was not, if there is any."""
        changed = None
        for part, name, buffer, before in self.buffers:
            if part._buffers.get(name) is not buffer or not _same_numbers(buffer, before):
                part._buffers[name] = buffer.copy_(before)
                changed = name
        for part, name, value in self.numbers:
            now = vars(part).get(name)
            if type(now) is not type(value) or now != value:  # a stand-in of the trace cannot be compared
                setattr(part, name, value)
                changed = name
        return changed


def _same_numbers(x: Tensor, y: Tensor) -> bool:
    """NaN being the same as NaN."""
    return torch.equal(x, y) or (x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all()))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
