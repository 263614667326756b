"""MobileNetV2, Sandler et al. 2018, with torchvision's names.

The last 1x1 convolution of each inverted residual takes ``conv_layer``. The paper reports 245M MACs for ImageNet and
155M for its CIFAR model DGC-1; no code exists, and of the rates and squeezes tried a squeeze of 4 fits both.
"""

from torch import Tensor, nn

from ..errors import UserError
from ..layers.method import ConvLayer
from ._classifier import SequentialClassifier, check_sizes, check_width, initialize, make_classifier, round_to_eight
from ._registry import norm_after, register_backbone

STAGES = (
    (1, 16, 1),
    (6, 24, 2),
    (6, 32, 3),
    (6, 64, 4),
    (6, 96, 3),
    (6, 160, 3),
    (6, 320, 1),
)  # expand, width, n


def _conv_norm_act(in_channels: int, out_channels: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise 3x3, 1x1 projection, plus the input where the shape allows."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expand: int, conv_layer: ConvLayer) -> None:
        super().__init__()
        hidden = in_channels * expand
        self.adds_input = stride == 1 and in_channels == out_channels
        self.conv = nn.Sequential()
        if expand != 1:
            self.conv.append(_conv_norm_act(in_channels, hidden, 1))
        self.conv.append(_conv_norm_act(hidden, hidden, 3, stride, groups=hidden))
        projection = conv_layer(hidden, out_channels, 1, bias=False)
        self.conv.append(projection)
        self.conv.append(norm_after(projection, out_channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds_input else self.conv(x)


class MobileNetV2(SequentialClassifier):
    """
    Args:
        width: multiplier of all channel counts.
        downsample: the stages, of 1 to 7, whose first layer has stride 2.
        stem_stride: 2 for ImageNet, 1 for CIFAR.
        dropout: before the classifier.
    """

    classifier_path = "classifier.1"

    def __init__(
        self,
        conv_layer: ConvLayer,
        num_classes: int,
        width: float,
        downsample: tuple[int, ...],
        stem_stride: int,
        dropout: float,
    ) -> None:
        super().__init__()
        check_sizes("`stem_stride`", stem_stride)
        check_width(width)
        if not set(downsample) <= set(range(1, len(STAGES) + 1)):
            raise UserError(f"`downsample` names stages from 1 to {len(STAGES)}, got {list(downsample)}")
        self.input_size = (3, 32, 32) if stem_stride == 1 else (3, 224, 224)
        channels = round_to_eight(32 * width)
        self.features = nn.Sequential(_conv_norm_act(3, channels, 3, stem_stride))
        for stage, (expand, base, layers) in enumerate(STAGES, start=1):
            out_channels = round_to_eight(base * width)
            for layer in range(layers):
                stride = 2 if stage in downsample and layer == 0 else 1
                self.features.append(InvertedResidual(channels, out_channels, stride, expand, conv_layer))
                channels = out_channels
        self.num_features = round_to_eight(1280 * max(1.0, width))
        self.features.append(_conv_norm_act(channels, self.num_features, 1))
        self.classifier = nn.Sequential(nn.Dropout(dropout), make_classifier(self.num_features, num_classes))
        initialize(self)


@register_backbone(pruning_rate=0.55, squeeze=4)
def mobilenetv2(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 1000,
    width: float = 1.0,
    downsample: tuple[int, ...] = (2, 3, 4, 6),
    stem_stride: int = 2,
    dropout: float = 0.2,
) -> MobileNetV2:
    return MobileNetV2(conv_layer, num_classes, width, downsample, stem_stride, dropout)
