"""The MAC counter: multiply-accumulate operations per image, layer by layer, by a named convention.

``paper``: convolutions, the classifier, and the saliency generators' two maps, 2C²/d a head.

A head is charged for the channels it really keeps, ``ceil((1 - xi) C)``. The other methods are charged alike: for the
part of the undivided convolution they compute, and for what decides it (:class:`~dgconv.layers.Method`).

``authors``: what the authors' code adds up, and what most of their reported numbers are. Also one for every element
of a ReLU and of a pooling window, for each bias of a linear layer, and in a dynamic layer C·H·W for its own pooling
and C/d + 3C a head for the generator's activations and bias. Batch normalization is free. A head is charged for the
fraction (1 - xi) C, not rounded.

What has no rule here (a transposed convolution, attention, ``F.conv2d`` in a module's own forward) is counted by
torch's formulas (:mod:`torch.utils.flop_counter`), alike in both conventions. A convolution with a forward of its own
is counted so, too, if that is one convolution with its weight; any other is refused by name, for it may skip work.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ..errors import UserError
from ..layers.method import Convention, MacCall
from ..layers.mode import evaluating
from .rules import ALWAYS_RULED, cost_of, has_own_forward, rule_for

CONVENTIONS: tuple[Convention, ...] = get_args(Convention)


@dataclass(frozen=True)
class LayerCost:
    """One layer: what it costs, and what it would cost undivided."""

    name: str
    kind: str
    output: tuple[int, ...]
    macs: float
    dense_macs: float
    kept_share: float | None = None  # of the undivided work, for a layer that saves some


@dataclass(frozen=True)
class MacCount:
    """The cost of one image. ``macs`` is the total; ``layers`` lists what it is made of."""

    convention: Convention
    input_size: tuple[int, ...]
    layers: list[LayerCost]
    uncounted: list[str]  # kinds of layers that have weights, and for which neither a rule nor a formula was found
    measured: bool  # kept shares seen on images, not taken from the layers' options

    @property
    def macs(self) -> float:
        return sum(layer.macs for layer in self.layers)

    @property
    def dense_macs(self) -> float:
        """The same network with plain convolutions instead of dynamic ones."""
        return sum(layer.dense_macs for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        return {
            "convention": self.convention,
            "input_size": list(self.input_size),
            "macs": self.macs,
            "dense_macs": self.dense_macs,
            "measured": self.measured,
            "uncounted": self.uncounted,
            "layers": [vars(layer) for layer in self.layers],
        }


def count_macs(
    model: nn.Module,
    input_size: tuple[int, ...] | None = None,
    convention: Convention = "paper",
    images: Tensor | None = None,
) -> MacCount:
    """Count the MACs of one image.

    Args:
        input_size: (channels, height, width); default ``model.input_size``.
        images: a batch of real images, normalized as the model wants them. With it the kept shares are measured,
            the only true count for a method that decides image by image (:func:`needs_images`); without, the
            layers' options are taken.
    """
    if convention not in CONVENTIONS:
        raise UserError(f"convention must be 'paper' or 'authors', got {convention!r}")
    return _count(model, input_size, (convention,), images)[convention]


def count_macs_by_convention(
    model: nn.Module, input_size: tuple[int, ...] | None = None, images: Tensor | None = None
) -> dict[Convention, MacCount]:
    """:func:`count_macs` in every convention, by running the model once."""
    return _count(model, input_size, CONVENTIONS, images)


def needs_images(model: nn.Module) -> bool:
    """Whether the cost can only be measured: a layer of the model decides image by image how much to compute."""
    return any(getattr(module, "cost_depends_on_image", False) for module in model.modules())


def _count(
    model: nn.Module, input_size: tuple[int, ...] | None, conventions: tuple[Convention, ...], images: Tensor | None
) -> dict[Convention, MacCount]:
    _check(model)
    measured = images is not None
    if images is None:
        images = _blank_image(model, input_size)
    if not len(images):
        raise UserError("images is an empty batch; give at least one to measure on")
    counter = _Counter(conventions, measured, len(images))
    with _looking_at(model), counter.watching(model):
        try:
            model(images)
        except RuntimeError as error:
            raise UserError(f"the model does not take an input of {list(images.shape[1:])}: {error}") from error
    size, uncounted = tuple(images.shape[1:]), sorted(counter.uncounted)
    return {name: MacCount(name, size, layers, uncounted, measured) for name, layers in counter.layers.items()}


def _check(model: nn.Module) -> None:
    """Refuse what has no layers to look at."""
    if not isinstance(model, nn.Module):
        raise UserError(f"count_macs takes an nn.Module, got a {type(model).__name__}")
    for module in model.modules():
        if reason := getattr(module, "why_not_counted", None):
            raise UserError(reason)
        if isinstance(module, torch.jit.ScriptModule):
            raise UserError("the layers of TorchScript cannot be watched; count the model that it was made from")


def check_input_size(size: Any) -> None:
    if not isinstance(size, tuple | list) or not all(isinstance(n, int) and n > 0 for n in size):
        raise UserError(f"input_size must be (channels, height, width), whole numbers above 0, got {size!r}")


def _blank_image(model: nn.Module, input_size: tuple[int, ...] | None) -> Tensor:
    size = input_size or getattr(model, "input_size", None)
    if size is None:
        raise UserError("count_macs needs input_size=(channels, height, width) for this model")
    check_input_size(size)
    example = next(model.parameters(), torch.empty(0))
    return torch.zeros(1, *size, device=example.device, dtype=example.dtype)


@contextmanager
def _looking_at(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, without gradients and without what would hide operations."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with evaluating(model), torch.inference_mode():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


NORM = torch.ops.aten._native_batch_norm_legit_no_training.default


@dataclass
class _Running:
    """A module that is being run, and the operations seen in it that torch has a formula for."""

    name: str
    is_leaf: bool
    has_rule: bool = False  # what it is made of does not matter
    operations: int = 0
    macs: float = 0
    weights: list[Tensor] = field(default_factory=list)  # that they convolved with


class _Counter(TorchDispatchMode):
    """Sees each leaf of the module tree that runs, a layer with a rule of its own being one, and what runs between."""

    def __init__(self, conventions: tuple[Convention, ...], measured: bool, batch: int) -> None:
        super().__init__()
        self.measured, self.batch = measured, batch
        self.layers: dict[Convention, list[LayerCost]] = {convention: [] for convention in conventions}
        self.uncounted: set[str] = set()
        self.running = [_Running("", is_leaf=False)]
        self.made_of_nothing: set[Any] = set()  # operations that have no formula, and no parts

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        with ExitStack() as hooks:
            for name, module, is_leaf in _tree(model):
                before = module.register_forward_pre_hook(partial(self._enter, name, is_leaf))
                after = module.register_forward_hook(self._leave, with_kwargs=True)
                hooks.callback(before.remove)
                hooks.callback(after.remove)
            with self:
                yield

    def _enter(self, name: str, is_leaf: bool, module: nn.Module, args: Any) -> None:
        has_rule = is_leaf and isinstance(module, ALWAYS_RULED) and not has_own_forward(module)
        self.running.append(_Running(name, is_leaf, has_rule))

    def _leave(self, module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        run, kind = self.running[-1], type(module).__name__
        inputs, outputs = _tensors((args, kwargs)), _tensors(out)
        if run.is_leaf and inputs and outputs:
            shape = tuple(outputs[0].shape[1:])
            is_own = has_own_forward(module)
            if is_own and not (len(run.weights) == run.operations == 1 and run.weights[0] is module.weight):
                raise _no_rule(run.name, kind)
            for convention, layers in self.layers.items():
                call = MacCall(inputs[0], outputs[0], convention, self.measured)
                if not is_own and (cost := cost_of(module, call)):
                    layers.append(LayerCost(run.name, kind, shape, *cost))
                elif run.operations:
                    layers.append(LayerCost(run.name, kind, shape, run.macs, run.macs))
                elif _has_weights(module) and "Norm" not in kind:
                    self.uncounted.add(kind)
        self.running.pop()  # only now: measuring a layer runs operations, too

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is NORM and args[0].is_meta:  # torch would take it apart to find three shapes
            return torch.empty_like(args[0]), args[0].new_empty(0), args[0].new_empty(0)
        formula = flop_registry.get(func.overloadpacket)
        if self.running[-1].has_rule or func in self.made_of_nothing:
            return func(*args, **kwargs)
        if formula is None:
            with self:  # an operation made of others: these are what counts
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            self.made_of_nothing.add(func)
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        macs = formula(*args, **kwargs, out_val=out) / 2 / self.batch
        run = self.running[-1]
        if run.is_leaf:
            run.operations, run.macs = run.operations + 1, run.macs + macs
            run.weights += args[1:2] if "convolution" in func.overloadpacket.__name__ else []
        else:
            cost = LayerCost(run.name, func.overloadpacket.__name__, tuple(out.shape[1:]), macs, macs)
            for layers in self.layers.values():
                layers.append(cost)
        return out


def _no_rule(name: str, kind: str) -> UserError:
    return UserError(
        f"{name} is a {kind}, a convolution with a forward of its own, and nothing tells what it costs: give it a rule "
        f"with dgconv.cost.register_rule({kind}, rule), or register its method with dgconv.layers.register_method"
    )


def _tree(model: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """The modules to watch, each once, with their names, and whether one is to be seen as a whole."""
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        parts = set(module.modules()) - {module}
        if module not in inside:
            is_leaf = not parts or rule_for(module) is not None or _is_quantized(module)
            inside |= parts if is_leaf else set()
            yield name, module, is_leaf


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None or _is_quantized(module)


def _is_quantized(module: nn.Module) -> bool:
    """Torch's quantized layers have no parameters, but a method ``weight``."""
    return callable(getattr(module, "weight", None))


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
