"""What the gates of a network do while it runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from .mode import evaluating
from .saliency import passing_overflow
from .select import dynamic_layers

TIED = 1e-5  # of a saliency: so far apart, rounding may turn two around


@contextmanager
def counting_gates(model: nn.Module, count: Tensor) -> Iterator[None]:
    """Adds to ``count`` the gates that close and the gates there are, while the model runs."""

    def add(saliency: Tensor, mask: Tensor) -> None:
        count[0] += mask.numel() - mask.sum()
        count[1] += mask.numel()

    with ExitStack() as stack:
        for _, layer in dynamic_layers(model):
            stack.enter_context(layer.gate.observed_by(add))
        yield


@torch.no_grad()
def measured_rate(model: nn.Module, images: Tensor) -> float | None:
    """The share of all decisions about a channel that leave it out, for these images; None without dynamic layers."""
    if not any(True for _ in dynamic_layers(model)):
        return None
    count = torch.zeros(2, dtype=torch.float64, device=images.device)
    with evaluating(model), passing_overflow(), counting_gates(model, count):
        model(images)
    closed, seen = count.tolist()
    return closed / seen


@torch.no_grad()
def tied_layers(model: nn.Module, images: Tensor) -> list[str]:
    """The dynamic layers in which a channel is kept whose saliency is, but for rounding, that of one left out."""
    tied: dict[str, None] = {}

    def look(name: str, saliency: Tensor, mask: Tensor) -> None:
        saliency = saliency.abs()  # as the global gate compares them; the others are not negative
        least = saliency.where(mask, torch.inf).amin(-1)
        most = saliency.where(~mask, -torch.inf).amax(-1)
        if bool((least - most <= TIED * least.abs()).any()):
            tied[name] = None

    with evaluating(model), passing_overflow(), ExitStack() as stack:
        for name, layer in dynamic_layers(model):
            stack.enter_context(layer.gate.observed_by(partial(look, name)))
        model(images)
    return list(tied)
