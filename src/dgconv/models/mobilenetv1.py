"""MobileNetV1, Howard et al. 2017.

The 1x1 convolution of each depthwise separable pair takes ``conv_layer``.
"""

from torch import nn

from ..layers.method import ConvLayer
from ._classifier import SequentialClassifier, check_width, initialize, make_classifier, round_to_eight
from ._registry import norm_after, register_backbone

LAYERS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
"""Width and stride of each separable convolution."""


class SeparableConv(nn.Sequential):
    """Depthwise 3x3, BN, ReLU, 1x1, BN, ReLU."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, conv_layer: ConvLayer) -> None:
        pointwise = conv_layer(in_channels, out_channels, 1, bias=False)
        super().__init__(
            nn.Conv2d(in_channels, in_channels, 3, stride, 1, groups=in_channels, bias=False),
            nn.BatchNorm2d(in_channels),
            nn.ReLU(inplace=True),
            pointwise,
            norm_after(pointwise, out_channels),
            nn.ReLU(inplace=True),
        )


class MobileNetV1(SequentialClassifier):
    """
    Args:
        width: multiplier of all channel counts.
    """

    classifier_path = "classifier"
    input_size = (3, 224, 224)

    def __init__(self, conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()
        check_width(width)
        channels = round_to_eight(32 * width)
        stem = nn.Conv2d(3, channels, 3, 2, 1, bias=False)
        self.features = nn.Sequential(stem, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        for base, stride in LAYERS:
            out_channels = round_to_eight(base * width)
            self.features.append(SeparableConv(channels, out_channels, stride, conv_layer))
            channels = out_channels
        self.num_features = channels
        self.classifier = make_classifier(channels, num_classes)
        initialize(self)


@register_backbone(saliency_start="calm")
def mobilenetv1(conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 1000, width: float = 1.0) -> MobileNetV1:
    return MobileNetV1(conv_layer, num_classes, width)
