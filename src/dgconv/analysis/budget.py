"""Spending: another pruning rate than the trained one, and less on easy images than on hard ones."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data import Split
from ..errors import UserError
from ..layers import GlobalGate, HeadGate
from ..layers.gate import check_pruning_rate
from ..layers.select import dynamic_layers, set_pruning_rate
from ..train.threshold import quantile
from .macs import count_macs

THRESHOLDS = tuple(step / 20 for step in range(21))  # of the margin, from never to nearly always again
SEARCHES = 4  # what later layers see depends on what earlier ones prune, so a threshold is looked for repeatedly


def set_rate(model: nn.Module, rate: float, images: Tensor | None = None) -> None:
    """Prune at another rate from now on, without training.

    Head-wise gates keep another number of channels. The global gate has a threshold instead: the one below which this
    share of the saliencies of ``images`` (a batch of training images, normalised) lies.
    """
    check_pruning_rate(rate)
    set_pruning_rate(model, rate)
    gates = [layer.gate for _, layer in dynamic_layers(model) if isinstance(layer.gate, GlobalGate)]
    if not gates:
        return
    if images is None:
        raise UserError("the global gate needs a batch of images to find the threshold of another pruning rate on")
    for _ in range(SEARCHES):
        seen: list[Tensor] = []
        with ExitStack() as stack, torch.no_grad():
            for gate in gates:
                stack.enter_context(gate.observed_by(lambda saliency, mask: seen.append(saliency.abs().flatten())))
            model(images)
        threshold = quantile(torch.cat(seen), rate)
        for gate in gates:
            gate.threshold.copy_(threshold)


@contextmanager
def at_rate(model: nn.Module, rate: float, images: Tensor | None = None) -> Iterator[None]:
    """:func:`set_rate` for a while."""
    layers = [layer for _, layer in dynamic_layers(model)]
    before = [(layer.pruning_rate, _state(layer.gate).clone()) for layer in layers]
    try:
        set_rate(model, rate, images)
        yield
    finally:
        for layer, (old_rate, state) in zip(layers, before, strict=True):
            layer.pruning_rate = old_rate
            _state(layer.gate).copy_(state)


def _state(gate: HeadGate | GlobalGate) -> Tensor:
    return gate.keep if isinstance(gate, HeadGate) else gate.threshold


class ImageCost:
    """MACs of single images (convention ``paper``), by the channels that each of them kept.

    ::

        with ImageCost(model, input_size) as cost:
            model(images)
        cost.macs  # [B]
    """

    def __init__(self, model: nn.Module, input_size: tuple[int, ...]) -> None:
        self.layers = dict(dynamic_layers(model))
        self.fixed, self.dense = 0.0, {}
        for layer in count_macs(model, input_size).layers:
            if layer.name in self.layers and layer.kept_share is not None:
                self.dense[layer.name] = layer.dense_macs
                self.fixed += layer.macs - layer.kept_share * layer.dense_macs  # the generator
            else:
                self.fixed += layer.macs
        self.macs = torch.zeros(0)
        self._stack = ExitStack()

    def __enter__(self) -> "ImageCost":
        spent: Tensor | None = None

        def add(name: str, mask: Tensor) -> None:
            nonlocal spent
            macs = self.dense[name] * mask.flatten(1).double().mean(1)
            spent = macs if spent is None else spent + macs
            self.macs = spent + self.fixed

        for name, layer in self.layers.items():
            self._stack.enter_context(layer.gate.observed_by(lambda saliency, mask, name=name: add(name, mask)))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


@dataclass(frozen=True)
class Pass:
    """Every image of a split at one pruning rate."""

    rate: float
    correct: Tensor  # [N] bool
    margin: Tensor  # [N] how sure it is: the highest probability less the second
    macs: Tensor  # [N]

    @property
    def error(self) -> float:
        """In percent."""
        return 100 * (1 - float(self.correct.double().mean()))

    @property
    def mean_macs(self) -> float:
        return float(self.macs.mean())


@torch.no_grad()
def run_at_rate(
    model: nn.Module,
    split: Split,
    rate: float | None,
    *,
    calibration: Tensor | None = None,
    batch_size: int = 1000,
    device: torch.device | str = "cpu",
) -> Pass:
    """All images once at this rate, or as the network is; ``calibration`` is for the global gate, see :func:`set_rate`."""
    was_training = model.training
    model.eval()
    correct, margins, macs = [], [], []
    with ExitStack() as stack:
        stack.callback(model.train, was_training)
        if rate is not None:
            stack.enter_context(at_rate(model, rate, calibration))
        rates = [layer.pruning_rate for _, layer in dynamic_layers(model)]
        for x, target in split.batches(batch_size, train=False, device=device):
            with ImageCost(model, tuple(x.shape[1:])) as cost:
                logits = model(x.contiguous(memory_format=torch.channels_last))
            first, second = logits.float().softmax(1).topk(2, dim=1).values.unbind(1)
            correct.append(logits.argmax(1) == target)
            margins.append(first - second)
            macs.append(cost.macs)
    used = sum(rates) / len(rates) if rate is None else rate
    return Pass(used, torch.cat(correct).cpu(), torch.cat(margins).cpu(), torch.cat(macs).cpu())


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
    if len(passes) < 2 or any(a.rate <= b.rate for a, b in zip(passes, passes[1:], strict=False)):
        raise UserError(f"give passes from a high to a low pruning rate, at least two; got {[p.rate for p in passes]}")
    spendings = []
    for threshold in thresholds:
        still = torch.ones_like(passes[0].correct)
        right, macs, stopped = 0, 0.0, []
        for number, one in enumerate(passes):
            macs += float(one.macs[still].sum())
            is_last = number == len(passes) - 1
            ends = still if is_last else still & (one.margin >= threshold)
            right += int(one.correct[ends].sum())
            stopped.append(float(ends.double().mean()))
            still = still & ~ends
        images = len(passes[0].correct)
        spendings.append(Spending(threshold, 100 * (1 - right / images), macs / images, stopped))
    return spendings
