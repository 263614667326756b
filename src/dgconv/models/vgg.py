"""VGG-16 and -19 with batch norm, Simonyan and Zisserman 2015, as the pruning papers have them for CIFAR.

The five stages of 3x3 convolutions as they were, then one linear layer. All but the first convolution, which sees the
image, take ``conv_layer``.
"""

from torch import nn

from ..layers.method import ConvLayer
from ._classifier import SequentialClassifier, check_sizes, initialize, make_classifier
from ._registry import norm_after, register_backbone

WIDTHS = (1, 2, 4, 8, 8)  # of the stages, in units of the first


class VGG(SequentialClassifier):
    """
    Args:
        stages: convolutions a stage; max-pooling halves the size between two.
        width: channels of the first stage.
    """

    classifier_path = "classifier"
    input_size = (3, 32, 32)

    def __init__(
        self, stages: tuple[int, ...], width: int, conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 10
    ) -> None:
        super().__init__()
        check_sizes("`width`", width)
        self.features = nn.Sequential()
        channels = 3
        for stage, (layers, times) in enumerate(zip(stages, WIDTHS, strict=True)):
            if stage > 0:
                self.features.append(nn.MaxPool2d(2))
            for _ in range(layers):
                make = nn.Conv2d if channels == 3 else conv_layer
                conv = make(channels, times * width, 3, padding=1, bias=False)
                self.features.extend([conv, norm_after(conv, times * width), nn.ReLU(inplace=True)])
                channels = times * width
        self.num_features = channels
        self.classifier = make_classifier(channels, num_classes)
        initialize(self)


@register_backbone(saliency_start="calm")
def vgg16(conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 10, width: int = 64) -> VGG:
    return VGG((2, 2, 3, 3, 3), width, conv_layer, num_classes)


@register_backbone(saliency_start="calm")
def vgg19(conv_layer: ConvLayer = nn.Conv2d, num_classes: int = 10, width: int = 64) -> VGG:
    return VGG((2, 2, 4, 4, 4), width, conv_layer, num_classes)
