"""IGCV3-D, Sun et al. 2018: MobileNetV2's blocks, twice as many, with 1x1 convolutions in two groups.

``conv_layer`` replaces both grouped 1x1 convolutions of a block and the shuffles after them. Without a method they are
as published, but for the order in which the second shuffle names its channels, and with ``groups=1`` undivided.
"""

from functools import partial

from torch import Tensor, nn

from ..layers import StandardGroupConv2d
from ..layers.method import ConvLayer
from ._classifier import SequentialClassifier, check_sizes, check_width, initialize, make_classifier, round_to_eight
from ._registry import norm_after, register_backbone, unless_method

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 4, 2),
    (6, 32, 6, 2),
    (6, 64, 8, 2),
    (6, 96, 6, 1),
    (6, 160, 6, 2),
    (6, 320, 1, 1),
)  # expand, width, n, stride


class InterleavedBlock(nn.Module):
    """1x1, BN, depthwise 3x3, BN, ReLU6, 1x1, BN, plus the input where the shape allows."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expand: int, conv_layer: ConvLayer) -> None:
        super().__init__()
        hidden = in_channels * expand
        self.adds_input = stride == 1 and in_channels == out_channels
        expansion = conv_layer(in_channels, hidden, 1, bias=False)
        projection = conv_layer(hidden, out_channels, 1, bias=False)
        self.conv = nn.Sequential(
            expansion,
            norm_after(expansion, hidden),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            projection,
            norm_after(projection, out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds_input else self.conv(x)


class IGCV3(SequentialClassifier):
    """
    Args:
        groups: of its own 1x1 convolutions.
        width: multiplier of all channel counts.
    """

    classifier_path = "classifier"
    input_size = (3, 224, 224)

    def __init__(
        self, conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 1000, groups: int = 2, width: float = 1.0
    ) -> None:
        super().__init__()
        check_width(width)
        check_sizes("`groups`", groups)
        layer = unless_method(conv_layer, partial(StandardGroupConv2d, groups=groups))
        channels = round_to_eight(32 * width)
        self.features = _conv_norm_act(3, channels, 3, 2)
        for expand, base, blocks, first_stride in STAGES:
            out_channels = round_to_eight(base * width)
            for block in range(blocks):
                stride = first_stride if block == 0 else 1
                self.features.append(InterleavedBlock(channels, out_channels, stride, expand, layer))
                channels = out_channels
        self.num_features = round_to_eight(1280 * max(1.0, width))
        self.features.extend(_conv_norm_act(channels, self.num_features, 1, 1))
        self.classifier = make_classifier(self.num_features, num_classes)
        initialize(self)


def _conv_norm_act(in_channels: int, out_channels: int, size: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, size, stride, size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU6(inplace=True))


@register_backbone(saliency_start="calm")
def igcv3(conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 1000, groups: int = 2, width: float = 1.0) -> IGCV3:
    return IGCV3(conv_layer, num_classes, groups, width)
