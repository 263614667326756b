"""CondenseNet's modified DenseNet, Huang et al. 2018: CondenseNet-50 and -86 for CIFAR, -74 for ImageNet.

CondenseNet-N has N = 2 n + 2 layers, n being the dense layers of all stages.

The 1x1 convolution of each dense layer takes ``conv_layer``; the 3x3 has four fixed groups.
"""

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..layers.fusible import BatchNormReLU2d, GroupedConv2d, HalvingAvgPool2d, run_pointwise
from ..layers.method import ConvLayer
from ..ops.fused import Room
from ._classifier import ImageClassifier, check_sizes, initialize, make_classifier
from ._registry import norm_after, register_backbone

BOTTLENECK = 4  # outputs of a 1x1 convolution, in units of the growth
GROUPS = 4  # of the 3x3 convolutions


class DenseLayer(nn.Module):
    """BN, ReLU, 1x1 to four times the growth, BN, ReLU, grouped 3x3 to the growth, appended to the input."""

    def __init__(self, in_channels: int, growth: int, conv_layer: ConvLayer) -> None:
        super().__init__()
        self.norm1 = BatchNormReLU2d(in_channels)
        self.conv1 = conv_layer(in_channels, BOTTLENECK * growth, 1, bias=False)
        self.norm2 = norm_after(self.conv1, BOTTLENECK * growth, relu=True)
        self.conv2 = GroupedConv2d(BOTTLENECK * growth, growth, 3, padding=1, groups=GROUPS, bias=False)

    def forward(self, x: Tensor, room: Room | None = None) -> Tensor:
        """``room`` is that of the stage, in which its features grow."""
        out, x, means = self.norm1(x, and_more=True)
        out = run_pointwise(self.conv1, out, means)
        return self.conv2.append_to(x, self.norm2(out), room)


class CondenseNet(ImageClassifier):
    """
    Args:
        stages: dense layers a stage; average pooling halves the size in between.
        growth: channels each layer of a stage adds.
        stem: ``"cifar"`` or ``"imagenet"``, which strides by 2.
    """

    classifier_path = "classifier"
    gpu_memory_format = torch.contiguous_format  # the fused kernels work on planes

    def __init__(
        self,
        stages: tuple[int, ...],
        growth: tuple[int, ...],
        stem: str,
        conv_layer: ConvLayer = nn.Conv2d,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        if len(stages) != len(growth):
            raise UserError(f"`stages` and `growth` must have one length, got {list(stages)} and {list(growth)}")
        check_sizes("`stages` and `growth`", *stages, *growth)
        if any(rate % GROUPS for rate in growth):
            raise UserError(f"`growth` must be multiples of {GROUPS}, the groups of a 3x3, got {list(growth)}")
        self.input_size = (3, 32, 32) if stem == "cifar" else (3, 224, 224)
        self.stage_channels: list[int] = []  # at the end of each
        channels = 2 * growth[0]
        self.stem = nn.Conv2d(3, channels, 3, 1 if stem == "cifar" else 2, 1, bias=False)
        self.stages = nn.Sequential()
        for stage, (layers, rate) in enumerate(zip(stages, growth, strict=True)):
            if stage > 0:
                self.stages.append(HalvingAvgPool2d())
            end = channels + layers * rate
            for before in range(channels, end, rate):
                self.stages.append(DenseLayer(before, rate, conv_layer))
            self.stage_channels.append(end)
            channels = end
        self.norm = BatchNormReLU2d(channels)
        self.num_features = channels
        self.classifier = make_classifier(channels, num_classes)
        initialize(self)

    def forward_features(self, x: Tensor) -> Tensor:
        x, ends = self.stem(x), iter(self.stage_channels)
        room = Room(next(ends))
        for part in self.stages:
            if isinstance(part, DenseLayer):
                x = part(x, room)
            else:
                x, room = part(x), Room(next(ends))
        return self.norm(x)


@register_backbone(pruning_rate=0.75)
def condensenet20(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 10,
    stages: tuple[int, ...] = (3, 3, 3),
    growth: tuple[int, ...] = (8, 16, 32),
) -> CondenseNet:
    """A CondenseNet that is not in the paper: small enough to train on a CPU while you watch."""
    return CondenseNet(stages, growth, "cifar", conv_layer, num_classes)


@register_backbone(pruning_rate=0.75)
def condensenet50(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 10,
    stages: tuple[int, ...] = (8, 8, 8),
    growth: tuple[int, ...] = (8, 16, 32),
) -> CondenseNet:
    return CondenseNet(stages, growth, "cifar", conv_layer, num_classes)


@register_backbone(pruning_rate=0.75)
def condensenet86(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 10,
    stages: tuple[int, ...] = (14, 14, 14),
    growth: tuple[int, ...] = (8, 16, 32),
) -> CondenseNet:
    return CondenseNet(stages, growth, "cifar", conv_layer, num_classes)


@register_backbone(pruning_rate=0.75)
def condensenet74(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 1000,
    stages: tuple[int, ...] = (4, 6, 8, 10, 8),
    growth: tuple[int, ...] = (8, 16, 32, 64, 128),
) -> CondenseNet:
    return CondenseNet(stages, growth, "imagenet", conv_layer, num_classes)
