"""The figures of a trained network: what it gets wrong, and what it costs."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..cost import count_macs_by_convention, needs_images
from ..data import Data
from ..data.sample import sample
from ..deploy.precision import Precision
from ..layers.saliency import passing_overflow
from ..models import ImageClassifier
from ..pruning import what_is_left

MEASURED_IMAGES = 256  # whose MACs are counted, where they depend on the image


@dataclass(frozen=True)
class Summary:
    """MACs are those of one image, by convention; ``dense_macs`` with plain convolutions instead of dynamic ones."""

    model: str
    data: str
    test_images: int
    error: float
    pruning_rate: float | None
    macs: dict[str, float]
    dense_macs: dict[str, float]
    parameters: int
    precision: Precision = "float32"  # in which it was evaluated

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarize(
    model: ImageClassifier,
    data: Data,
    *,
    error: float,
    pruning_rate: float | None,
    device: torch.device | str = "cpu",
) -> Summary:
    """Count what was evaluated; ``error`` and ``pruning_rate`` come from :func:`dgconv.train.evaluate`."""
    images = images_to_measure(model, data, device)
    used = what_is_left(model)
    with passing_overflow():
        counts = count_macs_by_convention(model, data.input_size, images)
        left = counts if used is model else count_macs_by_convention(used, data.input_size, images)
    return Summary(
        model=model.config["name"],
        data=data.name,
        test_images=len(data.test),
        error=error,
        pruning_rate=pruning_rate,
        macs={convention: count.macs for convention, count in left.items()},
        dense_macs={convention: count.dense_macs for convention, count in counts.items()},
        parameters=sum(parameter.numel() for parameter in used.parameters()),
    )


def images_to_measure(model: nn.Module, data: Data, device: torch.device | str = "cpu") -> Tensor | None:
    """Test images, if what the model costs depends on the image."""
    if not needs_images(model):
        return None
    return next(sample(data.test, MEASURED_IMAGES, device=device))
