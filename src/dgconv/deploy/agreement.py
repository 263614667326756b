"""What low precision does to the choice: whether gates keep the same channels, and networks give the same answers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from rich.table import Table
from torch import Tensor

from ..errors import UserError
from ..text import as_text
from .graph import ByteConv, ByteMean, Conv, GateSpec, GlobalPool, Graph
from .run import torch_steps
from .run.prepared import PreparedModel

AT_ONCE = 64  # images


@dataclass(frozen=True)
class LayerAgreement:
    """Of one dynamic convolution: the share of images and heads whose set of channels is the same, and the mean overlap
    of the two sets (what both have, of what either has)."""

    layer: str
    same: float
    overlap: float


@dataclass(frozen=True)
class Agreement:
    """Two forms of one network on the same images. ``print`` it for a table."""

    images: int
    flipped: float  # the share of images whose greatest logit is another
    logits: float  # the root mean square of the difference, in standard deviations of the logits
    layers: tuple[LayerAgreement, ...]

    @property
    def overlap(self) -> float:
        """The mean over all layers; 1 where there is nothing to choose."""
        return sum(layer.overlap for layer in self.layers) / len(self.layers) if self.layers else 1.0

    def __rich__(self) -> Table:
        table = Table("layer", "same channels", "overlap")
        for layer in self.layers:
            table.add_row(layer.layer, f"{layer.same:.2%}", f"{layer.overlap:.4f}")
        table.caption = (
            f"{self.images} images: {self.flipped:.2%} answered otherwise, logits differ by {self.logits:.4f}"
        )
        return table

    def __str__(self) -> str:
        return as_text(self)


def agreement(one: PreparedModel, other: PreparedModel, images: Tensor) -> Agreement:
    """Compares two prepared forms of one network, such as float32 and int8, on images [N, C, height, width]."""
    counts = [len(list(_steps_with_gates(model.graph))) for model in (one, other)]
    if counts[0] != counts[1]:
        raise UserError(
            f"the two are not forms of one network: they have {counts[0]} and {counts[1]} dynamic convolutions"
        )
    with torch.no_grad():
        results = [_by_parts(model, images) for model in (one, other)]
        pairs = zip(gated(one.graph), gated(other.graph), strict=True)  # one after the other: each is half a network
        layers = tuple(_compare(first, second, images) for first, second in pairs)
    flipped = _flipped(*results)
    distance = float((results[0] - results[1]).square().mean().sqrt() / results[0].std().clamp_min(1e-12))
    return Agreement(len(images), flipped, distance, layers)


def flipped(one: PreparedModel, other: PreparedModel, images: Tensor) -> float | None:
    """The share of images whose greatest logit is another; None of networks that give something else than logits."""
    with torch.no_grad():
        if not all(isinstance(result := model(images[:1]), Tensor) and result.dim() == 2 for model in (one, other)):
            return None
        return _flipped(_by_parts(one, images), _by_parts(other, images))


def _flipped(logits: Tensor, others: Tensor) -> float:
    return float((logits.argmax(1) != others.argmax(1)).float().mean())


@dataclass(frozen=True)
class Gated:
    """A gate, the number of its step, and the network up to it."""

    index: int
    layer: str
    gate: GateSpec
    means: PreparedModel  # from images to what the generator is given

    def select(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The saliencies, [N, H, C], and which channels each head keeps."""
        return torch_steps.select(self.gate, _by_parts(self.means, images))


def gated(graph: Graph) -> Iterator[Gated]:
    """Every gate of a network."""
    for index, step in _steps_with_gates(graph):
        assert step.gate is not None
        end = "means of its channels"
        if isinstance(step, ByteConv):
            mean: ByteMean | GlobalPool = ByteMean(step.input, end, step.given)
        else:
            mean = GlobalPool(step.input, end, step.before)
        cut = replace(graph, steps=[*graph.steps[:index], mean], output=end)
        yield Gated(index, step.label, step.gate, PreparedModel(cut))


def _steps_with_gates(graph: Graph) -> Iterator[tuple[int, Conv | ByteConv]]:
    for index, step in enumerate(graph.steps):
        if isinstance(step, Conv | ByteConv) and step.gate is not None:
            yield index, step


def _by_parts(model: PreparedModel, images: Tensor) -> Tensor:
    return torch.cat([model(part) for part in images.split(AT_ONCE)])


def _compare(one: Gated, other: Gated, images: Tensor) -> LayerAgreement:
    kept = [form.select(images)[1] for form in (one, other)]
    both, either = (kept[0] & kept[1]).sum(-1), (kept[0] | kept[1]).sum(-1)
    overlap = torch.where(either > 0, both / either.clamp_min(1), 1.0)
    return LayerAgreement(one.layer, float((both == either).float().mean()), float(overlap.mean()))
