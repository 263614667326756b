"""Spending less on easy images than on hard ones: how sure the network is decides whether it looks again."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..cost.image_cost import ImageCost
from ..data import Split
from ..errors import UserError
from ..layers.mode import evaluating
from ..layers.saliency import passing_overflow
from ..train.evaluate import images_at_once
from .rate import at_rate

THRESHOLDS = tuple(step / 20 for step in range(21))  # of the margin, from never to nearly always again


@dataclass(frozen=True)
class Pass:
    """Every image of a split at one pruning rate."""

    rate: float
    correct: Tensor  # [N] bool
    margin: Tensor  # [N] how sure it is: the highest probability less the second
    macs: Tensor  # [N]

    @property
    def error(self) -> float:
        """The share of wrong answers, in percent."""
        return 100 * int((~self.correct).sum()) / len(self.correct)

    @property
    def mean_macs(self) -> float:
        return float(self.macs.mean())


@torch.no_grad()
def run_at_rate(
    model: nn.Module, split: Split, rate: float, calibration: Tensor, device: torch.device | str = "cpu"
) -> Pass:
    """All images once at this rate; ``calibration`` are the images for :func:`set_rate`."""
    correct, margins, macs = [], [], []
    cost: ImageCost | None = None
    with evaluating(model), passing_overflow(), at_rate(model, rate, calibration):
        for x, target in split.batches(images_at_once(device), train=False, device=device):
            cost = cost or ImageCost(model, tuple(x.shape[1:]))
            with cost:
                logits = model(x.contiguous(memory_format=torch.channels_last))
            first, second = logits.float().softmax(1).topk(2, dim=1).values.unbind(1)
            correct.append(logits.argmax(1) == target)
            margins.append(first - second)
            macs.append(cost.macs)
    return Pass(rate, torch.cat(correct).cpu(), torch.cat(margins).cpu(), torch.cat(macs).cpu())


@dataclass(frozen=True)
class Spending:
    """What comes out when images below a margin are looked at again."""

    threshold: float
    error: float  # percent
    macs: float  # of an image on average, all its passes together
    stopped: list[float]  # share of the images whose answer each pass gave


def spend_by_margin(passes: Sequence[Pass], thresholds: Sequence[float] = THRESHOLDS) -> list[Spending]:
    """Cheapest first: each image goes on to the next pass while its margin is below the threshold.

    The answer is that of the last pass an image took; it pays for all it took. At threshold 0 none goes on.
    """
    if len(passes) < 2 or any(a.rate <= b.rate for a, b in pairwise(passes)):
        raise UserError(f"give passes from a high to a low pruning rate, at least two; got {[p.rate for p in passes]}")
    spendings = []
    for threshold in thresholds:
        still = torch.ones_like(passes[0].correct)
        wrong, macs, stopped = 0, 0.0, []
        for number, one in enumerate(passes):
            macs += float(one.macs[still].sum())
            is_last = number == len(passes) - 1
            ends = still if is_last else still & (one.margin >= threshold)
            wrong += int((~one.correct[ends]).sum())
            stopped.append(float(ends.double().mean()))
            still = still & ~ends
        images = len(passes[0].correct)
        spendings.append(Spending(threshold, 100 * wrong / images, macs / images, stopped))
    return spendings
