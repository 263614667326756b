"""ResNet, He et al. 2016: ResNet-18 with torchvision's names, for ImageNet or, with ``stem="cifar"``, for images of 32
pixels; ResNet-20, -56 and -110 for CIFAR.

Both 3x3 convolutions of a block, and the 1x1 of its shortcut, take ``conv_layer``: the reported 2.04x fewer MACs
come out only with the shortcuts, and only at a pruning rate of 0.55 (the paper's text says 0.75, which gives 3.3x).
With ``shortcuts="dense"`` only the 3x3 convolutions do, as the paper's text has it.

Where the convolutions are dynamic, a network starts calmly: saliencies near 1, and the last batch norm of each block at
0, so that a block adds nothing yet. A saliency grows with the image that it multiplies; from the paper's start
(``saliency_start="random"``) an image a little brighter than what the batch norms have seen grows with every block, and
overflows.
"""

from typing import Literal, get_args

from torch import Tensor, nn

from ..errors import UserError
from ..layers import DynamicGroupConv2d
from ..layers.method import ConvLayer
from ._classifier import ImageClassifier, check_sizes, initialize, make_classifier
from ._registry import norm_after, register_backbone

Shortcuts = Literal["method", "dense"]
Stem = Literal["imagenet", "cifar"]


def shortcut_layer_of(shortcuts: Shortcuts, conv_layer: ConvLayer) -> ConvLayer:
    """What a network's shortcuts are made of."""
    if shortcuts not in get_args(Shortcuts):
        raise UserError(f"`shortcuts` must be {' or '.join(map(repr, get_args(Shortcuts)))}, got {shortcuts!r}")
    return nn.Conv2d if shortcuts == "dense" else conv_layer


def _conv(
    conv_layer: ConvLayer, pre_norm: bool, in_channels: int, out_channels: int, size: int, stride: int
) -> nn.Module:
    conv = conv_layer(in_channels, out_channels, size, stride=stride, padding=size // 2, bias=False)
    if pre_norm:
        return nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=False), conv)
    return conv


class BasicBlock(nn.Module):
    """conv, BN, ReLU, conv, BN, plus the shortcut, ReLU."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        conv_layer: ConvLayer,
        shortcut_layer: ConvLayer,
        pre_norm: bool,
    ) -> None:
        super().__init__()
        self.conv1 = _conv(conv_layer, pre_norm, in_channels, out_channels, 3, stride)
        self.bn1 = norm_after(self.conv1, out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv(conv_layer, pre_norm, out_channels, out_channels, 3, 1)
        self.bn2 = norm_after(self.conv2, out_channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            shortcut = _conv(shortcut_layer, pre_norm, in_channels, out_channels, 1, stride)
            self.downsample = nn.Sequential(shortcut, norm_after(shortcut, out_channels))
        starts = [part.saliency_start for part in self.conv2.modules() if isinstance(part, DynamicGroupConv2d)]
        if starts and starts[0] != "random" and isinstance(self.bn2, nn.BatchNorm2d):
            nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + shortcut)


class ResNet(ImageClassifier):
    """
    Args:
        stages: blocks a stage; each stage after the first halves the size and doubles the width.
        width: channels of the first stage.
        stem: ``"imagenet"`` (7x7 stride 2 and max-pooling) or ``"cifar"`` (3x3).
        pre_norm: the authors' variant, one more BN and ReLU in front of every convolution of a block.
        shortcuts: ``"method"`` puts the method's layer into the 1x1 of the shortcuts, too, ``"dense"`` does not.
    """

    classifier_path = "fc"

    def __init__(
        self,
        stages: tuple[int, ...],
        width: int,
        stem: Stem,
        conv_layer: ConvLayer = nn.Conv2d,
        num_classes: int = 1000,
        pre_norm: bool = False,
        shortcuts: Shortcuts = "method",
    ) -> None:
        super().__init__()
        check_sizes("`stages` and `width`", *stages, width)
        if stem not in get_args(Stem):
            raise UserError(f"`stem` must be {' or '.join(map(repr, get_args(Stem)))}, got {stem!r}")
        shortcut_layer = shortcut_layer_of(shortcuts, conv_layer)
        is_cifar = stem == "cifar"
        self.input_size = (3, 32, 32) if is_cifar else (3, 224, 224)
        self.conv1 = nn.Conv2d(3, width, 3 if is_cifar else 7, 1 if is_cifar else 2, 1 if is_cifar else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if is_cifar else nn.MaxPool2d(3, 2, 1)
        self.num_stages = len(stages)
        in_channels = width
        for stage, blocks in enumerate(stages):
            layers = nn.Sequential()
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                block_layers = BasicBlock(in_channels, width << stage, stride, conv_layer, shortcut_layer, pre_norm)
                layers.append(block_layers)
                in_channels = width << stage
            self.add_module(f"layer{stage + 1}", layers)
        self.num_features = in_channels
        self.fc = make_classifier(in_channels, num_classes)
        initialize(self)

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.num_stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return x


@register_backbone(pruning_rate=0.55, saliency_start="calm")
def resnet18(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 1000,
    width: int = 64,
    stages: tuple[int, ...] = (2, 2, 2, 2),
    pre_norm: bool = False,
    shortcuts: Shortcuts = "method",
    stem: Stem = "imagenet",
) -> ResNet:
    return ResNet(stages, width, stem, conv_layer, num_classes, pre_norm, shortcuts)


@register_backbone(saliency_start="calm")
def resnet20(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 10,
    width: int = 16,
    pre_norm: bool = False,
    shortcuts: Shortcuts = "method",
) -> ResNet:
    return ResNet((3, 3, 3), width, "cifar", conv_layer, num_classes, pre_norm, shortcuts)


@register_backbone(saliency_start="calm")
def resnet56(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 10,
    width: int = 16,
    pre_norm: bool = False,
    shortcuts: Shortcuts = "method",
) -> ResNet:
    return ResNet((9, 9, 9), width, "cifar", conv_layer, num_classes, pre_norm, shortcuts)


@register_backbone(saliency_start="calm")
def resnet110(
    conv_layer: ConvLayer = nn.Conv2d,
    num_classes: int = 10,
    width: int = 16,
    stages: tuple[int, ...] = (18, 18, 18),
    pre_norm: bool = False,
    shortcuts: Shortcuts = "method",
) -> ResNet:
    return ResNet(stages, width, "cifar", conv_layer, num_classes, pre_norm, shortcuts)
