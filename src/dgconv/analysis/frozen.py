"""What it is worth that gates depend on the image: the error of the same network when they no longer do."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Data
from ..data.base import Batch
from ..data.sample import labelled_sample
from ..layers.gate import Gate
from ..layers.mode import evaluating
from ..layers.saliency import passing_overflow
from ..layers.select import dynamic_layers
from .recording import Recording

MOST_IMAGES, BATCH = 500, 50
PIXELS = 1 << 27  # that all passes of the network read: with large images, or many layers, fewer images tell


@contextmanager
def freeze_gates(
    model: nn.Module, recording: Recording, *, saliencies: bool, layers: Collection[str] | None = None
) -> Iterator[None]:
    """Every image keeps, for a while, the channels that the average of the recorded images would keep.

    Args:
        saliencies: also scale them as the average does; or else each image by its own saliencies, as trained.
        layers: of these alone.
    """
    with ExitStack() as stack:
        for name, layer in dynamic_layers(model):
            if layers is not None and name not in layers:
                continue
            mean = recording.layers[name].saliency_mean
            stack.callback(layer.gate.register_forward_hook(partial(_frozen, mean, saliencies)).remove)
        yield


def _frozen(mean: Tensor, saliencies: bool, gate: Gate, args: tuple[Any, ...], out: Tensor) -> Tensor:
    """Takes the place of what the gate gave, ``[B, H, C]``; ``mean`` is ``[H, C]``."""
    saliency: Tensor = args[0]
    mean = mean.to(saliency)
    return (mean if saliencies else saliency).where(gate.mask(mean), 0).expand_as(saliency)


@dataclass(frozen=True)
class Worth:
    """What it is worth to a layer to look at the image: by how many points the error rises if it does not."""

    choice: float  # the same channels for every image, scaled as trained
    gate: float  # the same channels, scaled alike


def some_images(model: nn.Module, data: Data, device: torch.device | str = "cpu") -> list[Batch]:
    """Test images for :func:`worth_by_layer`, and their labels: as many as there is time for."""
    passes = 2 * sum(1 for _ in dynamic_layers(model)) + 1
    _, height, width = data.input_size
    count = max(BATCH, min(MOST_IMAGES, PIXELS // (passes * height * width)))
    return list(labelled_sample(data.test, count, BATCH, device))


@torch.no_grad()
def worth_by_layer(
    model: nn.Module,
    recording: Recording,
    images: Sequence[Batch],
    call: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Worth]:
    """Freezes one layer after the other, and measures the error of some images each time.

    Args:
        call: calls the model; itself, unless there is more to it.
    """
    call = call or model

    def error() -> float:
        wrong = sum(int((call(x).argmax(1) != y).sum()) for x, y in images)
        return 100 * wrong / sum(len(y) for _, y in images)

    def frozen(name: str, *, saliencies: bool) -> float:
        with freeze_gates(model, recording, saliencies=saliencies, layers=[name]):
            return error()

    with evaluating(model), passing_overflow():
        before = error()
        return {
            name: Worth(frozen(name, saliencies=False) - before, frozen(name, saliencies=True) - before)
            for name in recording.layers
        }
