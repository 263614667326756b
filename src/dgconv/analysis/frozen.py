"""What it is worth that gates depend on the image: the error of the same network when they no longer do."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..layers.gate import Gate
from ..layers.select import dynamic_layers
from .recording import Recording


@contextmanager
def freeze_gates(model: nn.Module, recording: Recording, *, saliencies: bool) -> Iterator[None]:
    """Every image keeps, for a while, the channels that the average of the recorded images would keep.

    Args:
        saliencies: also scale them as the average does; or else each image by its own saliencies, as trained.
    """
    with ExitStack() as stack:
        for name, layer in dynamic_layers(model):
            mean = recording.layers[name].saliency_mean
            stack.callback(layer.gate.register_forward_hook(partial(_frozen, mean, saliencies)).remove)
        yield


def _frozen(mean: Tensor, saliencies: bool, gate: Gate, args: tuple[Any, ...], out: Tensor) -> Tensor:
    """Takes the place of what the gate gave, ``[B, H, C]``; ``mean`` is ``[H, C]``."""
    saliency: Tensor = args[0]
    mean = mean.to(saliency)
    return (mean if saliencies else saliency).where(gate.mask(mean), 0).expand_as(saliency)
