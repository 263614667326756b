"""Recording what the gates of a network do, over a whole data set, in memory that does not grow with it.

::

    with record(model, classes=10) as recording:
        evaluate(model, recording.watch(split))
    recording.layers["stages.0.conv1"].pruning_probability  # [H, C]
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..data import Split
from ..data.base import Batch, Pass
from ..errors import UserError
from ..layers import DynamicGroupConv2d
from ..layers.select import dynamic_layers
from ..train.evaluate import Evaluation, evaluate
from .reservoir import Reservoir


class LayerRecord:
    """One dynamic layer: sums over all images, head by head and channel by channel, and single images as examples."""

    def __init__(self, name: str, layer: DynamicGroupConv2d, examples: int, classes: int | None) -> None:
        self.name, self.heads, self.channels = name, layer.heads, layer.in_channels
        shape, device = (layer.heads, layer.in_channels), layer.weight.device
        self.images = 0
        self.kept = torch.zeros(shape, dtype=torch.int64, device=device)  # images that keep a channel, [H, C]
        self.saliency_sum = torch.zeros(shape, dtype=torch.float64, device=device)
        self.saliency_squares = torch.zeros_like(self.saliency_sum)
        self.kept_by_class = torch.zeros(classes or 0, *shape, dtype=torch.int32, device=device)  # [classes, H, C]
        self.example_masks = torch.zeros(examples, *shape, dtype=torch.bool, device=device)  # [N, H, C]
        self.example_saliencies = torch.zeros(examples, *shape, device=device)

    @torch.no_grad()
    def add(self, saliency: Tensor, mask: Tensor, rows: Tensor, slots: Tensor, labels: Tensor | None) -> None:
        """One batch, ``[B, H, C]``. Nothing here waits for the device."""
        self.images += len(mask)
        saliency = saliency.detach().nan_to_num(0, 0, 0)  # of images that overflow
        wide = saliency.double()
        self.kept += mask.sum(0)
        self.saliency_sum += wide.sum(0)
        self.saliency_squares += wide.square().sum(0)
        if len(self.kept_by_class) and labels is not None:
            self.kept_by_class.index_add_(0, labels, mask.to(torch.int32))
        if len(rows):
            self.example_masks[slots] = mask[rows]
            self.example_saliencies[slots] = saliency[rows].float()

    def finish(self, examples: int) -> None:
        """Off the device, and without the places for examples that never came."""
        for name in ("kept", "saliency_sum", "saliency_squares", "kept_by_class"):
            setattr(self, name, getattr(self, name).cpu())
        for name in ("example_masks", "example_saliencies"):
            setattr(self, name, getattr(self, name)[:examples].cpu())

    @property
    def pruning_probability(self) -> Tensor:
        """Share of the images that leave a channel out, ``[H, C]``."""
        return 1 - self.kept / max(1, self.images)

    @property
    def saliency_mean(self) -> Tensor:
        return self.saliency_sum / max(1, self.images)

    @property
    def saliency_std(self) -> Tensor:
        return (self.saliency_squares / max(1, self.images) - self.saliency_mean.square()).clamp(min=0).sqrt()

    @property
    def decisions(self) -> int:
        return self.images * self.heads * self.channels

    @property
    def pruned_share(self) -> float:
        return (self.decisions - int(self.kept.sum())) / max(1, self.decisions)


class Recording:
    """What :func:`record` fills: a :class:`LayerRecord` for each dynamic layer, and the images held as examples."""

    def __init__(self, model: nn.Module, examples: int, classes: int | None, seed: int) -> None:
        self.layers = {n: LayerRecord(n, layer, examples, classes) for n, layer in dynamic_layers(model)}
        self.images = 0
        self.example_images = torch.empty(0)  # [N, 3, height, width], as the network sees them
        self.example_labels = torch.full((examples,), -1)  # -1: not told
        self.images_by_class = torch.zeros(classes or 0, dtype=torch.int64)
        self._reservoir = Reservoir(examples, seed)
        self._next_labels: Tensor | None = None
        self._batch: tuple[Tensor, Tensor, Tensor | None]  # rows and slots of new examples, labels

    def watch(self, split: Split) -> Split:
        """The same split; the recording learns the labels of each batch."""
        return _WatchedSplit(split, self)

    @property
    def pruned_share(self) -> float:
        """The share of all decisions about a channel that left it out: what ``evaluate`` measures."""
        decisions = sum(layer.decisions for layer in self.layers.values())
        kept = sum(int(layer.kept.sum()) for layer in self.layers.values())
        return (decisions - kept) / max(1, decisions)

    def tell_labels(self, labels: Tensor) -> None:
        """Takes the labels of the next batch."""
        self._next_labels = labels

    def begin(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        """Takes note of a pass of the model before it runs, as a forward pre-hook."""
        x: Tensor = args[0]
        labels, self._next_labels = self._next_labels, None
        rows, slots = (indices.to(x.device, non_blocking=True) for indices in self._reservoir.draw(len(x)))
        self._batch = (rows, slots, labels)
        if not self.images:
            self.example_images = x.new_zeros(self._reservoir.size, *x.shape[1:])
            self.example_labels = self.example_labels.to(x.device)
            self.images_by_class = self.images_by_class.to(x.device)
        if x.shape[1:] != self.example_images.shape[1:]:
            sizes = list(self.example_images.shape[1:]), list(x.shape[1:])
            raise UserError(f"the images of one recording must have one size, got {sizes[0]} and then {sizes[1]}")
        self.images += len(x)
        self.example_images[slots] = x.detach()[rows]
        if labels is not None:
            self.example_labels[slots] = labels[rows]
        if len(self.images_by_class):
            if labels is None:
                raise UserError("counting by class needs labels: evaluate on recording.watch(split), or tell_labels")
            self.images_by_class.index_add_(0, labels, torch.ones_like(labels))

    def add(self, layer: LayerRecord, saliency: Tensor, mask: Tensor) -> None:
        layer.add(saliency, mask, *self._batch)

    def finish(self) -> None:
        filled = self._reservoir.filled
        for layer in self.layers.values():
            layer.finish(filled)
        self.example_images = self.example_images[:filled].cpu()
        self.example_labels = self.example_labels[:filled].cpu()
        self.images_by_class = self.images_by_class.cpu()


@contextmanager
def record(model: nn.Module, *, examples: int = 256, classes: int | None = None, seed: int = 0) -> Iterator[Recording]:
    """Records every pass of the model until the block ends; the model is then as it was.

    Args:
        examples: images whose saliencies and masks are held one by one, a fair sample of all.
        classes: number of classes to count by, too.
        seed: decides which images become examples.
    """
    recording = Recording(model, examples, classes, seed)
    if not recording.layers:
        raise UserError(f"{type(model).__name__} has no DynamicGroupConv2d, so there are no gates to record")
    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(recording.begin).remove)
        for name, layer in dynamic_layers(model):
            stack.enter_context(layer.gate.observed_by(partial(recording.add, recording.layers[name])))
        yield recording
    recording.finish()


def record_run(
    model: nn.Module, split: Split, *, device: torch.device | str = "cpu", **options: Any
) -> tuple[Recording, Evaluation]:
    """Evaluate a model on every image of a split, and record it; ``options`` are those of :func:`record`."""
    with record(model, **options) as recording:
        evaluation = evaluate(model, recording.watch(split), device=device)
    return recording, evaluation


class _WatchedSplit(Split):
    """A split that tells a recording the labels of each batch before it hands the batch out."""

    def __init__(self, split: Split, recording: Recording) -> None:
        self.split, self.recording, self.labels = split, recording, split.labels

    def to(self, device: torch.device | str) -> "_WatchedSplit":
        return _WatchedSplit(self.split.to(device), self.recording)

    def go_over(self, asked: Pass) -> Iterator[Batch]:
        for x, labels in self.split.batches(**vars(asked)):
            self.recording.tell_labels(labels)
            yield x, labels
