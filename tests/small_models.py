"""Networks that are too deep or wide to test all over, in a form that has every kind of layer they are made of."""

import torch

from dgconv import create_model, list_models
from dgconv.models import ImageClassifier

SMALL: dict[str, dict[str, object]] = {
    "resnet110": {"stages": (1, 2, 1)},
    "resnet164": {"stages": (1, 2, 1)},
    "condensenet86": {"stages": (2, 2, 2)},
    "condensenet74": {"stages": (1, 1, 2, 1, 1)},
    "densenet40": {"stages": (2, 2, 2)},
    "vgg16": {"width": 16},
    "vgg19": {"width": 16},
    "mobilenetv1": {"width": 0.25},
    "shufflenet": {"width": 1.0},
    "igcv3": {"width": 0.25},
    "nasneta": {"repeats": 1, "channels": 16},
    "nasnetb": {"repeats": 1, "channels": 16},
    "nasnetc": {"repeats": 1, "channels": 16},
}
LARGEST = "nasnet"  # of which one method will do: the others' layers stand in the same places


def names_with(*methods: str) -> list[str]:
    """Every backbone with each of these methods."""
    split = [(name, *name.partition("_")[::2]) for name in list_models()]
    return [
        name
        for name, backbone, method in split
        if method in methods and not (backbone.startswith(LARGEST) and method not in ("", "dgc"))
    ]


def small_model(name: str, num_classes: int = 7, **options: object) -> ImageClassifier:
    return create_model(name, num_classes, **SMALL.get(name.partition("_")[0], {}), **options)  # type: ignore[arg-type]


def images_for(model: ImageClassifier, count: int) -> torch.Tensor:
    size = min(64, model.input_size[1])
    return torch.randn(count, 3, size, size)
