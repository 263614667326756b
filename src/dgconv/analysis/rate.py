"""Another pruning rate than the trained one, without training."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from ..data import Split
from ..layers.gate import check_pruning_rate
from ..layers.mode import evaluating
from ..layers.select import dynamic_layers, set_pruning_rate
from ..train.threshold import quantile

CALIBRATION_IMAGES, CALIBRATION_BATCH = 1024, 128
RANGE_IMAGES = 300  # that show the ranges of numbers for int8, as many as other tools take
SEARCHES = 6  # what later layers see depends on what earlier ones prune, so a threshold is looked for repeatedly


def set_rate(model: nn.Module, rate: float, images: Tensor) -> None:
    """Prune at another rate from now on, without training.

    Head-wise gates keep another number of channels; the global gate gets the threshold below which this share of the
    saliencies of ``images`` lies. The batch norms get new statistics, as in slimmable networks (Yu and Huang 2019):
    what a convolution gives depends on how many channels it takes, and with the old ones answers are near chance.

    Args:
        images: training images, normalized; see :func:`calibration_images`.
    """
    check_pruning_rate(rate)
    if all(layer.pruning_rate == rate and layer.gate.prunes_at(rate) for _, layer in dynamic_layers(model)):
        return  # as it was trained; a loaded state_dict brings the gates along, but no target
    set_pruning_rate(model, rate)
    thresholds = [t for _, layer in dynamic_layers(model) if (t := layer.gate.shared_threshold) is not None]
    for _ in range(SEARCHES if thresholds else 0):
        threshold = quantile(adapt_norms(model, images).abs(), rate)
        for place in thresholds:
            place.copy_(threshold)
    adapt_norms(model, images)


def can_set_rate(model: nn.Module) -> bool:
    """Whether it has gates that take a rate; those of your own do not."""
    return any(layer.gate.takes_rates for _, layer in dynamic_layers(model))


def calibration_images(
    train_split: Split, device: torch.device | str = "cpu", count: int = CALIBRATION_IMAGES
) -> Tensor:
    """Training images for :func:`set_rate`, or for ``prepare`` in int8: the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    batches = train_split.batches(count, train=True, generator=generator, device=device)
    return next(iter(batches))[0]


@torch.no_grad()
def adapt_norms(model: nn.Module, images: Tensor) -> Tensor:
    """Takes the batch norms' statistics anew, over these images; returns all saliencies on the way, in one row."""
    seen: list[Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        for _, layer in dynamic_layers(model):
            stack.enter_context(layer.gate.observed_by(lambda saliency, mask: seen.append(saliency.flatten())))
        for norm in model.modules():
            if isinstance(norm, nn.BatchNorm2d):
                stack.callback(setattr, norm, "momentum", norm.momentum)
                norm.momentum = None  # the mean over all batches
                norm.train().reset_running_stats()
        for batch in images.split(CALIBRATION_BATCH):
            model(batch)
    return torch.cat(seen)


@contextmanager
def at_rate(model: nn.Module, rate: float, images: Tensor) -> Iterator[None]:
    """:func:`set_rate` for a while."""
    rates = [(layer, layer.pruning_rate) for _, layer in dynamic_layers(model)]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]  # of gates and norms
    try:
        set_rate(model, rate, images)
        yield
    finally:
        for layer, before in rates:
            layer.pruning_rate = before
        for buffer, content in buffers:
            buffer.copy_(content)
