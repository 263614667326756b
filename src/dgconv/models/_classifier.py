"""What every model here has in common, with timm's names."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..values import MOST_SIZE

MOST_WIDTH = 1000  # times


class ImageClassifier(nn.Module, ABC):
    """``forward`` is ``forward_head(forward_features(x))``."""

    classifier_path: str  # where the last linear layer is
    num_features: int
    input_size: tuple[int, int, int]  # what the paper trains it on
    gpu_memory_format = torch.channels_last  # in which it trains fastest there
    config: dict[str, Any]  # the arguments of create_model

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))

    @abstractmethod
    def forward_features(self, x: Tensor) -> Tensor:
        """The last feature maps, before pooling."""

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.pool(x)
        return x if pre_logits else self.get_submodule(self.classifier_path.split(".")[0])(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        return self.get_submodule(self.classifier_path)

    @property
    def num_classes(self) -> int:
        return getattr(self.get_classifier(), "out_features", 0)

    def reset_classifier(self, num_classes: int) -> None:
        """A fresh last layer, where and of the dtype that the others are; 0 classes leaves the features as they are."""
        fresh = make_classifier(self.num_features, num_classes).to(next(self.parameters()))
        self.set_submodule(self.classifier_path, fresh)
        if hasattr(self, "config"):
            self.config["num_classes"] = num_classes
            if widths := dict(self.config.get("widths", {})):  # it was cut
                widths.pop(self.classifier_path, None)
                widths |= {self.classifier_path: [num_classes, self.num_features]} if num_classes else {}
                self.config["widths"] = widths


class SequentialClassifier(ImageClassifier):
    """Its feature maps come out of ``features``, one layer after the other."""

    features: nn.Sequential

    def forward_features(self, x: Tensor) -> Tensor:
        return self.features(x)


def check_sizes(name: str, *sizes: int) -> None:
    """Refuses sizes of a network that are no whole numbers of at least 1."""
    if not sizes or not all(isinstance(size, int) and 1 <= size <= MOST_SIZE for size in sizes):
        given = ", ".join(map(str, sizes)) or "none"
        raise UserError(f"{name} must be whole numbers, each from 1 to {MOST_SIZE}, got {given}")


def check_width(width: float) -> None:
    """Refuses what cannot multiply channel counts."""
    if not 0 < width <= MOST_WIDTH:
        raise UserError(
            f"`width` multiplies all channel counts and must be above 0 and up to {MOST_WIDTH}, got {width}"
        )


def round_to_eight(channels: float) -> int:
    """The nearest multiple of 8, not more than a tenth below."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def make_classifier(features: int, num_classes: int) -> nn.Module:
    if num_classes < 0:
        raise UserError(f"`num_classes` must not be negative, got {num_classes}")
    if num_classes == 0:
        return nn.Identity()
    linear = nn.Linear(features, num_classes)
    nn.init.zeros_(linear.bias)
    return linear


def initialize(model: nn.Module) -> None:
    """Kaiming-normal by fan-out for every ``nn.Conv2d``; a dynamic layer, which is none, has its own start."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
