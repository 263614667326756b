"""The MAC counter: multiply-accumulate operations per image, layer by layer, by a named convention.

``paper``: convolutions, the classifier, and the saliency generators' two maps, 2C²/d a head.

A head is charged for the channels it really keeps, ``ceil((1 - xi) C)``.

``authors``: what the authors' code adds up, and what most of their reported numbers are. Also one for every element
of a ReLU and of a pooling window, for each bias of a linear layer, and in a dynamic layer C·H·W for its own pooling
and C/d + 3C a head for the generator's activations and bias. Batch normalisation is free. A head is charged for the
fraction (1 - xi) C, not rounded.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..layers import DynamicGroupConv2d, GlobalGate, keep_count
from ..layers._conv import pair
from ..layers.fusible import BatchNormReLU2d

Convention = Literal["paper", "authors"]
CONVENTIONS: tuple[Convention, ...] = ("paper", "authors")
ACTIVATIONS = (nn.ReLU, nn.ReLU6, BatchNormReLU2d)
GLOBAL_POOLINGS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
WINDOW_POOLINGS = (nn.AvgPool2d, nn.MaxPool2d)


@dataclass(frozen=True)
class LayerCost:
    """One layer: what it costs, and what it would cost undivided."""

    name: str
    kind: str
    output: tuple[int, ...]
    macs: float
    dense_macs: float
    kept_share: float | None = None  # of input channels, for a dynamic layer


@dataclass(frozen=True)
class MacCount:
    """The cost of one image. ``macs`` is the total; ``layers`` lists what it is made of."""

    convention: Convention
    input_size: tuple[int, ...]
    layers: list[LayerCost]
    uncounted: list[str]  # kinds of layers that have parameters and no rule here
    measured: bool  # kept shares seen on images, not taken from the pruning rate

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
        images: a batch of real images, normalised as the model wants them. With it the kept shares are measured,
            which is the only true count for the global gate; without, its target rate is taken.
    """
    if convention not in CONVENTIONS:
        raise UserError(f"convention must be 'paper' or 'authors', got {convention!r}")
    if images is None:
        size = input_size or getattr(model, "input_size", None)
        if size is None:
            raise UserError("count_macs needs input_size=(channels, height, width) for this model")
        example = next(model.parameters(), torch.empty(0))
        images = torch.zeros(1, *size, device=example.device, dtype=example.dtype)
        measured = False
    else:
        measured = True

    layers: list[LayerCost] = []
    uncounted: set[str] = set()

    def record(name: str, module: nn.Module, x: Tensor, out: Tensor) -> None:
        cost = _cost(module, x, out, convention, measured)
        if cost is not None:
            kept = cost[2] if len(cost) > 2 else None
            layers.append(LayerCost(name, type(module).__name__, tuple(out.shape[1:]), cost[0], cost[1], kept))
        elif next(module.parameters(), None) is not None and "Norm" not in type(module).__name__:
            uncounted.add(type(module).__name__)

    with _evaluating(model), _watching(model, record):
        try:
            model(images)
        except RuntimeError as error:
            raise UserError(f"the model does not take an input of {list(images.shape[1:])}: {error}") from error
    return MacCount(convention, tuple(images.shape[1:]), layers, sorted(uncounted), measured)


def _cost(
    module: nn.Module, x: Tensor, out: Tensor, convention: Convention, measured: bool
) -> tuple[float, float] | tuple[float, float, float] | None:
    """MACs, MACs if undivided and (dynamic layers) kept share; None where no rule fits."""
    batch = max(1, x.shape[0])
    with_extras = convention == "authors"
    if isinstance(module, DynamicGroupConv2d):
        dense = module.weight[0].numel() * out[0].numel()
        is_measured = measured and isinstance(module.gate, GlobalGate)
        kept = _measured_share(module, x) if is_measured else _nominal_share(module, convention)
        hidden = module.generator.hidden
        generator = module.heads * 2 * module.in_channels * hidden
        if with_extras:
            generator += x[0].numel() + module.heads * (hidden + 3 * module.in_channels)
        return dense * kept + generator, dense, kept
    if isinstance(module, nn.Conv2d):
        macs = module.weight[0].numel() * out[0].numel()
        return macs, macs
    if isinstance(module, nn.Linear):
        macs = module.in_features * out.numel() // batch
        macs += out.numel() // batch if with_extras and module.bias is not None else 0
        return macs, macs
    if with_extras and isinstance(module, ACTIVATIONS + GLOBAL_POOLINGS):
        return x[0].numel(), x[0].numel()
    if with_extras and isinstance(module, WINDOW_POOLINGS):
        macs = out[0].numel() * math.prod(pair(module.kernel_size))
        return macs, macs
    return None


def _nominal_share(layer: DynamicGroupConv2d, convention: Convention) -> float:
    """The share of channels a head keeps, as the convention counts it."""
    gate, channels = layer.gate, layer.in_channels
    if isinstance(gate, GlobalGate):
        return 1 - layer.pruning_rate
    keep = int(gate.keep)
    at_target = keep == keep_count(channels, layer.pruning_rate, gate.keep_rule)
    return 1 - layer.pruning_rate if convention == "authors" and at_target else keep / channels


def _measured_share(layer: DynamicGroupConv2d, x: Tensor) -> float:
    return float(layer.gate.mask(layer.generator(x)).float().mean())


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, and every module's own mode back afterwards."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def _watching(model: nn.Module, record: Callable[[str, nn.Module, Tensor, Tensor], None]) -> Iterator[None]:
    """Calls ``record`` for each leaf of the module tree that runs; a dynamic layer counts as one leaf."""
    handles = []

    def watch(name: str, module: nn.Module) -> None:
        children = list(module.named_children())
        if children and not isinstance(module, DynamicGroupConv2d):
            for child_name, child in children:
                watch(f"{name}.{child_name}" if name else child_name, child)
        else:
            handles.append(
                module.register_forward_hook(
                    lambda module, args, out: record(name, module, args[0], out[0] if isinstance(out, tuple) else out)
                )
            )

    watch("", model)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
