"""DenseNet-40 for CIFAR, Huang et al. 2017: without bottlenecks, growth 12, as the pruning papers have it.

The 3x3 convolution of each dense layer takes ``conv_layer``; the stem and the 1x1 of the transitions stay dense.
"""

import torch
from torch import Tensor, nn

from ..layers.fusible import BatchNormReLU2d
from ..layers.method import ConvLayer
from ._classifier import ImageClassifier, check_sizes, initialize, make_classifier
from ._registry import register_backbone


class DenseLayer(nn.Module):
    """BN, ReLU, 3x3 to the growth, appended to the input."""

    def __init__(self, in_channels: int, growth: int, conv_layer: ConvLayer) -> None:
        super().__init__()
        self.norm = BatchNormReLU2d(in_channels)
        self.conv = conv_layer(in_channels, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.norm(x))], 1)


class Transition(nn.Sequential):
    """BN, ReLU, 1x1 to as many channels, and half the size."""

    def __init__(self, channels: int) -> None:
        conv = nn.Conv2d(channels, channels, 1, bias=False)
        super().__init__(BatchNormReLU2d(channels), conv, nn.AvgPool2d(2))


class DenseNet(ImageClassifier):
    """
    Args:
        stages: dense layers a stage.
        growth: channels each layer adds; the stem has twice as many.
    """

    classifier_path = "classifier"
    input_size = (3, 32, 32)

    def __init__(
        self, stages: tuple[int, ...], growth: int, conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 10
    ) -> None:
        super().__init__()
        check_sizes("`stages` and `growth`", *stages, growth)
        channels = 2 * growth
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.stages = nn.Sequential()
        for stage, layers in enumerate(stages):
            if stage > 0:
                self.stages.append(Transition(channels))
            for _ in range(layers):
                self.stages.append(DenseLayer(channels, growth, conv_layer))
                channels += growth
        self.norm = BatchNormReLU2d(channels)
        self.num_features = channels
        self.classifier = make_classifier(channels, num_classes)
        initialize(self)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.norm(self.stages(self.stem(x)))


@register_backbone(saliency_start="calm")
def densenet40(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 10,
    stages: tuple[int, ...] = (12, 12, 12),
    growth: int = 12,
) -> DenseNet:
    return DenseNet(stages, growth, conv_layer, num_classes)
