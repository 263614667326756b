"""Networks to prune."""

import pytest
import torch
from torch import nn

from dgconv import create_model


def lively(model: nn.Module) -> nn.Module:
    """As if it had been trained: batch norms of a fresh network are all alike."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.1, 2)
            nn.init.normal_(norm.bias)
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return model.eval()


@pytest.fixture
def network():
    """Builds a small one of each kind, by the name of its backbone."""
    options = {
        "resnet20": {"width": 8},
        "mobilenetv2": {"width": 0.25, "stem_stride": 1},
        "condensenet20": {"stages": (2, 1), "growth": (8, 12)},
    }

    def build(name: str = "resnet20") -> nn.Module:
        torch.manual_seed(0)
        return lively(create_model(name, num_classes=10, **options[name]))

    return build


def looked_at(model: nn.Module) -> nn.Module:
    """With images for the pruning methods that choose by them."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(16, 3, 16, 16, generator=generator), torch.arange(16) % 10
    model.pruning.examples = lambda: (images, labels)
    return model
