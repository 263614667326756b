"""Choosing and showing images in figures."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...data import Data, Split
from ...errors import UserError
from ..recording import Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def one_of_each_class(recording: Recording, classes: int, of_each: int = 1) -> tuple[Tensor, list[int], list[int]]:
    """Recorded examples, the first of each of the first classes that have enough: images, labels, places."""
    places: list[int] = []
    for label in recording.example_labels.unique().tolist():
        of_label = (recording.example_labels == label).nonzero().flatten().tolist()
        if len(of_label) >= of_each and len(places) < classes * of_each:
            places += of_label[:of_each]
    if len(places) < 2:
        raise UserError(f"needs {max(2, of_each)} recorded examples at least, of two classes; record more of them")
    return recording.example_images[places], recording.example_labels[places].tolist(), places


def first_of_each_class(split: Split, classes: int) -> tuple[Tensor, list[int]]:
    """The first image of each of the classes that come first: images, labels."""
    found: dict[int, Tensor] = {}
    for images, labels in split.batches(64, train=False):
        for image, label in zip(images, labels.tolist(), strict=True):
            found.setdefault(label, image)
        if len(found) >= classes:
            break
    if len(found) < classes:
        raise UserError(f"needs test images of {classes} classes")
    chosen = list(found)[:classes]
    return torch.stack([found[label] for label in chosen]), chosen


def shortened(name: str, letters: int) -> str:
    """Names of classes can be long."""
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def show_image(axes: "Axes", image: Tensor, data: Data) -> None:
    """A normalized image ``[3, height, width]``, in the colours it had."""
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    pixels = (image.cpu().permute(1, 2, 0) * std + mean).clamp(0, 1)
    axes.imshow(pixels.numpy(), interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
