"""ShuffleNet, Zhang et al. 2018: three groups and twice the width, which is the one of 524M MACs.

``conv_layer`` replaces the grouped 1x1 convolutions, and the shuffle after the first of each unit. Without a method
they are as published, and with ``groups=1`` undivided. The very first 1x1 has few inputs and is never divided.
"""

from functools import partial

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..layers import StandardGroupConv2d
from ..layers.method import ConvLayer
from ._classifier import ImageClassifier, check_sizes, check_width, initialize, make_classifier
from ._registry import norm_after, register_backbone, unless_method

BOTTLENECK = 4  # outputs of a unit, in units of its inner width
STEM = 24  # channels at width 1
WIDTHS = (240, 480, 960)  # of the stages, for three groups


class ShuffleUnit(nn.Module):
    """1x1, BN, ReLU, depthwise 3x3, BN, 1x1, BN; added to the input, or with stride 2 joined to its average; ReLU."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, first_layer: ConvLayer, last_layer: ConvLayer
    ) -> None:
        super().__init__()
        inner = out_channels // BOTTLENECK
        branch = out_channels - in_channels if stride == 2 else out_channels
        self.conv1 = first_layer(in_channels, inner, 1, bias=False)
        self.bn1 = norm_after(self.conv1, inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = last_layer(inner, branch, 1, bias=False)
        self.bn3 = norm_after(self.conv3, branch)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AvgPool2d(3, 2, 1) if stride == 2 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.bn2(self.conv2(out))))
        return self.relu(out + x if self.pool is None else torch.cat([self.pool(x), out], 1))


class ShuffleNet(ImageClassifier):
    """
    Args:
        groups: of its own 1x1 convolutions.
        width: multiplier of all channel counts.
    """

    classifier_path = "fc"
    input_size = (3, 224, 224)

    def __init__(
        self, conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 1000, groups: int = 3, width: float = 2.0
    ) -> None:
        super().__init__()
        check_width(width)
        check_sizes("`groups`", groups)
        channels = int(STEM * width)
        divided = [channels, *(int(base * width) // BOTTLENECK for base in WIDTHS)]
        if any(count % groups for count in divided):
            raise UserError(f"`groups` must divide {', '.join(map(str, divided))}, its channel counts, got {groups}")
        shuffled = unless_method(conv_layer, partial(StandardGroupConv2d, groups=groups))
        grouped = unless_method(conv_layer, partial(nn.Conv2d, groups=groups))
        stem = nn.Conv2d(3, channels, 3, 2, 1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.stages = nn.Sequential()
        for stage, (base, units) in enumerate(zip(WIDTHS, (4, 8, 4), strict=True)):
            out_channels = int(base * width)
            for unit in range(units):
                first_layer = nn.Conv2d if stage == unit == 0 else shuffled
                stride = 2 if unit == 0 else 1
                self.stages.append(ShuffleUnit(channels, out_channels, stride, first_layer, grouped))
                channels = out_channels
        self.num_features = channels
        self.fc = make_classifier(channels, num_classes)
        initialize(self)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.stages(self.stem(x))


@register_backbone(saliency_start="calm")
def shufflenet(
    conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 1000, groups: int = 3, width: float = 2.0
) -> ShuffleNet:
    return ShuffleNet(conv_layer, num_classes, groups, width)
