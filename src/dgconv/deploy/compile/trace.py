"""The calls that a model makes, in order, found by running it on a stand-in for the image (``torch.fx``)."""

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

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


def trace(model: Whole) -> tuple[fx.Graph, dict[nn.Module, str]]:
    """The graph of calls, and the modules whose code could not be followed, with the reason: they are single calls."""
    tracer = _Tracer()
    return tracer.trace(model), tracer.left


class _Proxy(fx.Proxy):
    """The stand-in. ``x += y`` changes x, and whoever else holds it sees that: fx itself would record ``x + y``."""


def _in_place(function: Callable[..., Any]) -> Callable[[_Proxy, Any], fx.Proxy]:
    return lambda x, y: x.tracer.create_proxy("call_function", function, (x, y), {})


for _function in IN_PLACE:
    setattr(_Proxy, f"__{_function.__name__}__", _in_place(_function))


class _Tracer(fx.Tracer):
    """Follows the code of every module down to the layers that have a rule, and those that cannot be followed."""

    def __init__(self) -> None:
        super().__init__(param_shapes_constant=True)
        self.left: dict[nn.Module, str] = {}

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
        nodes_before, stack_before, state = len(self.graph.nodes), dict(self.module_stack), _State(m)
        try:
            result = super().call_module(m, forward, args, kwargs)
            if name := state.restore():
                raise Untranslatable(f"it changes its own {name!r}")
            return result
        except Exception as error:
            # Whatever stopped the trace in here, a branch on the values most often: take back what was recorded of
            # this module and record the call of it instead.
            state.restore()
            for node in list(self.graph.nodes)[: nodes_before - 1 : -1]:
                self.graph.erase_node(node)
            self.module_stack.clear()
            self.module_stack.update(stack_before)
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
