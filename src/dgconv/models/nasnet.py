"""NASNet-A, -B and -C in the mobile setting, Zoph et al. 2018.

The 1x1 of each separable convolution in the cells takes ``conv_layer``; the stem, whose cells are very narrow, and the
1x1 convolutions that bring the cells' inputs to one width stay dense. Averages count the zeros of their padding, and
there is neither an auxiliary classifier nor dropping of paths.
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..layers.method import ConvLayer
from ..layers.odd_pixels import OddPixels
from ._classifier import ImageClassifier, check_sizes, initialize, make_classifier
from ._registry import norm_after, register_backbone

STEM = 32  # channels of the first convolution
Branch = tuple[str, int]  # an operation and the number of the state that it reads


@dataclass(frozen=True)
class CellPlan:
    """Blocks that each add two branches.

    The states are numbered: first the ``inputs``, the latest first, then what each block gives. An output is some of
    them side by side. The first output is for the next cell, the second, if there is one, for the cell after it.
    """

    inputs: int
    blocks: tuple[tuple[Branch, Branch], ...]
    outputs: tuple[tuple[int, ...], ...]


class Output(NamedTuple):
    """What is known of a cell's output before there are images: its channels, and how often the size was halved."""

    channels: int
    halvings: int


class SeparableConv(nn.Sequential):
    """ReLU, depthwise, 1x1, BN, all of it twice; the first may stride."""

    def __init__(self, in_channels: int, out_channels: int, size: int, stride: int, conv_layer: ConvLayer) -> None:
        super().__init__()
        for channels, step in ((in_channels, stride), (out_channels, 1)):
            depthwise = nn.Conv2d(channels, channels, size, step, size // 2, groups=channels, bias=False)
            pointwise = conv_layer(channels, out_channels, 1, bias=False)
            self.extend([nn.ReLU(), depthwise, pointwise, norm_after(pointwise, out_channels)])


class ReLUConvNorm(nn.Sequential):
    """ReLU, 1x1, BN."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        conv = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
        super().__init__(nn.ReLU(), conv, nn.BatchNorm2d(out_channels))


class HalfSize(nn.Module):
    """ReLU, two 1x1 convolutions, one of the even and one of the odd pixels, side by side, BN."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.relu = nn.ReLU()
        self.even = nn.Conv2d(in_channels, half, 1, 2, bias=False)
        self.odd = nn.Sequential(OddPixels(in_channels), nn.Conv2d(in_channels, out_channels - half, 1, bias=False))
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        return self.bn(torch.cat([self.even(x), self.odd(x)], 1))


def make_operation(name: str, in_channels: int, out_channels: int, stride: int, conv_layer: ConvLayer) -> nn.Module:
    """An operation by its name, such as ``sep3``: what it does and the size of its windows."""
    kind, size = name[:-1], int(name[-1])
    if kind == "sep":
        return SeparableConv(in_channels, out_channels, size, stride, conv_layer)
    if kind == "same":
        changes = stride > 1 or in_channels != out_channels
        return ReLUConvNorm(in_channels, out_channels, stride) if changes else nn.Identity()
    pool = (nn.MaxPool2d if kind == "max" else nn.AvgPool2d)(size, stride, size // 2)
    return pool if in_channels == out_channels else nn.Sequential(pool, ReLUConvNorm(in_channels, out_channels))


class Cell(nn.Module):
    """One cell, of the outputs of those before it.

    Args:
        plan: what it computes.
        inputs: what it is given, the latest first. Where that is less than the plan asks for, at the start of the
            network, the latest stands for the others, as it is.
        channels: of each state.
        stride: 2 in a reduction cell, where a branch reads an input.
    """

    def __init__(self, plan: CellPlan, inputs: list[Output], channels: int, stride: int, conv_layer: ConvLayer) -> None:
        super().__init__()
        self.plan = plan
        halvings = inputs[0].halvings
        self.entries = nn.ModuleList(_entry(given, channels, halvings - given.halvings) for given in inputs)
        self.outputs = [Output(channels * len(output), halvings + stride - 1) for output in plan.outputs]
        self.operations = nn.ModuleList()
        for name, state in itertools.chain(*plan.blocks):
            is_input, is_missing = state < plan.inputs, len(inputs) <= state < plan.inputs
            self.operations.append(
                make_operation(
                    name,
                    inputs[0].channels if is_missing else channels,
                    channels,
                    stride if is_input else 1,
                    conv_layer,
                )
            )

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        states = [entry(given) for entry, given in zip(self.entries, inputs, strict=True)]
        states += [inputs[0]] * (self.plan.inputs - len(states))
        operations = iter(self.operations)
        for (_, first), (_, second) in self.plan.blocks:
            states.append(next(operations)(states[first]) + next(operations)(states[second]))
        return [torch.cat([states[state] for state in output], 1) for output in self.plan.outputs]


def _entry(given: Output, channels: int, halvings: int) -> nn.Module:
    """Brings an input to the width and size of the cell's states, where it is not."""
    if halvings == 0:
        return nn.Identity() if given.channels == channels else ReLUConvNorm(given.channels, channels)
    halves = [HalfSize(given.channels if step == 0 else channels, channels) for step in range(halvings)]
    return nn.Sequential(*halves)


class NASNet(ImageClassifier):
    """
    Args:
        normal, reduction: the two cells.
        repeats: normal cells between two reductions.
        channels: of each state of the first normal cells; doubled by each reduction.
    """

    classifier_path = "classifier.1"
    input_size = (3, 224, 224)

    def __init__(
        self,
        normal: CellPlan,
        reduction: CellPlan,
        repeats: int,
        channels: int,
        conv_layer: ConvLayer = nn.Conv2d,
        num_classes: int = 1000,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_sizes("`repeats` and `channels`", repeats, channels)
        if channels % 4:
            raise UserError(f"`channels` must be a multiple of 4, for the stem has a quarter of them, got {channels}")
        self.stem = nn.Sequential(nn.Conv2d(3, STEM, 3, 2, bias=False), nn.BatchNorm2d(STEM))
        self.cells = nn.ModuleList()
        history = [[Output(STEM, 1)]]

        def add(plan: CellPlan, width: int, stride: int, layer: ConvLayer) -> None:
            cell = Cell(plan, _inputs(history, plan), width, stride, layer)
            self.cells.append(cell)
            history.insert(0, cell.outputs)

        add(reduction, channels // 4, 2, nn.Conv2d)
        add(reduction, channels // 2, 2, nn.Conv2d)
        for stage in range(3):
            if stage > 0:
                add(reduction, channels << stage, 2, conv_layer)
            for _ in range(repeats):
                add(normal, channels << stage, 1, conv_layer)
        self.relu = nn.ReLU()
        self.num_features = sum(output.channels for output in history[0])
        self.classifier = nn.Sequential(nn.Dropout(dropout), make_classifier(self.num_features, num_classes))
        initialize(self)

    def forward_features(self, x: Tensor) -> Tensor:
        history = [[self.stem(x)]]
        for cell in self.cells:
            assert isinstance(cell, Cell)
            history.insert(0, cell(_inputs(history, cell.plan)))
        return self.relu(torch.cat(history[0], 1))


T = TypeVar("T")


def _inputs(history: list[list[T]], plan: CellPlan) -> list[T]:
    """What a cell is given, of the outputs of all before it, the latest first."""
    return [outputs[min(age, len(outputs) - 1)] for age, outputs in enumerate(history[: plan.inputs])]


NORMAL_A = CellPlan(
    2,
    (
        (("sep5", 0), ("sep3", 1)),
        (("sep5", 1), ("sep3", 1)),
        (("avg3", 0), ("same1", 1)),
        (("avg3", 1), ("avg3", 1)),
        (("sep3", 0), ("same1", 0)),
    ),
    outputs=((1, 2, 3, 4, 5, 6),),
)
REDUCTION_A = CellPlan(
    2,
    (
        (("sep5", 0), ("sep7", 1)),
        (("max3", 0), ("sep7", 1)),
        (("avg3", 0), ("sep5", 1)),
        (("same1", 3), ("avg3", 2)),
        (("sep3", 2), ("max3", 0)),
    ),
    outputs=((3, 4, 5, 6),),
)


# The cells of NASNet-B and -C are published as pictures only. What their captions say is kept: four blocks, of B four
# inputs and four outputs that are not joined, of C one output that is. The operations are ours, chosen so that the
# reported MACs come out (of C the reported 4.9M parameters, too; of B there are 4.6M, reported are 5.3M).
NORMAL_B = CellPlan(
    4,
    (
        (("sep3", 0), ("same1", 3)),
        (("avg3", 4), ("same1", 1)),
        (("max3", 5), ("same1", 2)),
        (("avg3", 6), ("same1", 0)),
    ),
    outputs=((7,), (6,), (5,), (4,)),
)
REDUCTION_B = CellPlan(
    4,
    (
        (("sep7", 0), ("avg3", 1)),
        (("same1", 4), ("max3", 2)),
        (("same1", 5), ("max3", 3)),
        (("avg3", 6), ("max3", 0)),
    ),
    outputs=((7,), (6,), (5,), (4,)),
)
NORMAL_C = CellPlan(
    2,
    (
        (("sep5", 0), ("sep7", 1)),
        (("sep5", 1), ("avg3", 0)),
        (("sep7", 0), ("same1", 0)),
        (("sep5", 0), ("avg3", 1)),
    ),
    outputs=((1, 2, 3, 4, 5),),
)
REDUCTION_C = CellPlan(
    2,
    (
        (("sep7", 0), ("sep3", 1)),
        (("sep5", 1), ("max3", 0)),
        (("sep7", 1), ("avg3", 0)),
        (("sep5", 1), ("sep7", 1)),
    ),
    outputs=((2, 3, 4, 5),),
)


@register_backbone(saliency_start="calm")
def nasneta(conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 1000, repeats: int = 4, channels: int = 44) -> NASNet:
    return NASNet(NORMAL_A, REDUCTION_A, repeats, channels, conv_layer, num_classes)


@register_backbone(saliency_start="calm")
def nasnetb(conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 1000, repeats: int = 4, channels: int = 96) -> NASNet:
    """A network of the published MACs, not of the published operations."""
    return NASNet(NORMAL_B, REDUCTION_B, repeats, channels, conv_layer, num_classes)


@register_backbone(saliency_start="calm")
def nasnetc(conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 1000, repeats: int = 3, channels: int = 48) -> NASNet:
    """A network of the published MACs and parameters, not of the published operations."""
    return NASNet(NORMAL_C, REDUCTION_C, repeats, channels, conv_layer, num_classes)
