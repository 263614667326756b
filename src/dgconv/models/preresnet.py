"""ResNet-164 for CIFAR, He et al. 2016b: bottleneck blocks with batch norm and ReLU before each convolution.

The three convolutions of a block, and the 1x1 of its shortcut, take ``conv_layer``.
"""

from torch import Tensor, nn

from ..layers.fusible import BatchNormReLU2d
from ..layers.method import ConvLayer
from ._classifier import ImageClassifier, check_sizes, initialize, make_classifier
from ._registry import norm_after, register_backbone
from .resnet import Shortcuts, shortcut_layer_of

EXPANSION = 4  # outputs of a block, in units of its inner width


class PreActBottleneck(nn.Module):
    """BN, ReLU, 1x1, BN, ReLU, 3x3, BN, ReLU, 1x1, plus the shortcut."""

    def __init__(
        self, in_channels: int, width: int, stride: int, conv_layer: ConvLayer, shortcut_layer: ConvLayer
    ) -> None:
        super().__init__()
        out_channels = EXPANSION * width
        self.bn1 = BatchNormReLU2d(in_channels)
        self.conv1 = conv_layer(in_channels, width, 1, bias=False)
        self.bn2 = norm_after(self.conv1, width, relu=True)
        self.conv2 = conv_layer(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn3 = norm_after(self.conv2, width, relu=True)
        self.conv3 = conv_layer(width, out_channels, 1, bias=False)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = shortcut_layer(in_channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.conv1(self.bn1(x))
        out = self.conv2(self.bn2(out))
        return self.conv3(self.bn3(out)) + shortcut


class PreActResNet(ImageClassifier):
    """
    Args:
        stages: blocks a stage; each stage after the first halves the size and doubles the width.
        width: channels inside the blocks of the first stage.
        shortcuts: ``"method"`` puts the method's layer into the 1x1 of the shortcuts, too, ``"dense"`` does not.
    """

    classifier_path = "fc"
    input_size = (3, 32, 32)

    def __init__(
        self,
        stages: tuple[int, ...],
        width: int,
        conv_layer: ConvLayer = nn.Conv2d,
        num_classes: int = 10,
        shortcuts: Shortcuts = "method",
    ) -> None:
        super().__init__()
        check_sizes("`stages` and `width`", *stages, width)
        shortcut_layer = shortcut_layer_of(shortcuts, conv_layer)
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.layers = nn.Sequential()
        channels = width
        for stage, blocks in enumerate(stages):
            inner = width << stage
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                self.layers.append(PreActBottleneck(channels, inner, stride, conv_layer, shortcut_layer))
                channels = EXPANSION * inner
        self.norm = BatchNormReLU2d(channels)
        self.num_features = channels
        self.fc = make_classifier(channels, num_classes)
        initialize(self)

    def forward_features(self, x: Tensor) -> Tensor:
        return self.norm(self.layers(self.conv1(x)))


@register_backbone(saliency_start="calm")
def resnet164(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 10,
    width: int = 16,
    stages: tuple[int, ...] = (18, 18, 18),
    shortcuts: Shortcuts = "method",
) -> PreActResNet:
    return PreActResNet(stages, width, conv_layer, num_classes, shortcuts)
