"""The MAC counter: multiply-accumulate operations per image, layer by layer, by a named convention.

``paper``: convolutions, the classifier, and the saliency generators' two maps, 2C²/d a head.

A head is charged for the channels it really keeps, ``ceil((1 - xi) C)``. The other methods are charged alike: for the
part of the undivided convolution they compute, and for what decides it (:mod:`dgconv.analysis.mac_rules`).

``authors``: what the authors' code adds up, and what most of their reported numbers are. Also one for every element
of a ReLU and of a pooling window, for each bias of a linear layer, and in a dynamic layer C·H·W for its own pooling
and C/d + 3C a head for the generator's activations and bias. Batch normalisation is free. A head is charged for the
fraction (1 - xi) C, not rounded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ..errors import UserError
from .mac_rules import Call, Convention, cost_of, rule_for

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
    uncounted: list[str]  # kinds of layers that have parameters and no rule here
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
        images: a batch of real images, normalised as the model wants them. With it the kept shares are measured,
            the only true count for a method that decides image by image (``mac_rules.needs_images``); without, the
            layers' options are taken.
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
        cost = cost_of(module, Call(x, out, convention, measured))
        if cost is not None:
            layers.append(LayerCost(name, type(module).__name__, tuple(out.shape[1:]), *cost))
        elif next(module.parameters(), None) is not None and "Norm" not in type(module).__name__:
            uncounted.add(type(module).__name__)

    with _evaluating(model), _watching(model, record):
        try:
            model(images)
        except RuntimeError as error:
            raise UserError(f"the model does not take an input of {list(images.shape[1:])}: {error}") from error
    return MacCount(convention, tuple(images.shape[1:]), layers, sorted(uncounted), measured)


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
    """Calls ``record`` for each leaf of the module tree that runs; a layer with a rule of its own counts as one."""
    handles = []

    def watch(name: str, module: nn.Module) -> None:
        children = list(module.named_children())
        if children and not rule_for(module):
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
