"""How alike the channels are that two images keep: of the same class, of different ones, and by chance.

Likeness is the Jaccard index, channels both keep over channels either keeps, head by head. The baseline for chance
chooses as many channels as each image does, anywhere. A layer in which no image keeps anything has no index.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError
from .recording import Recording


@dataclass(frozen=True)
class Likeness:
    """Mean Jaccard indices, a layer each; NaN where a layer has none."""

    same_class: list[float]
    other_classes: list[float]
    chance: list[float]
    pairs: dict[str, int]  # of images, that the means are over

    @property
    def curves(self) -> dict[str, list[float]]:
        return {"same_class": self.same_class, "other_classes": self.other_classes, "chance": self.chance}

    @property
    def means(self) -> dict[str, float]:
        """The means over the layers."""
        return {name: float(torch.tensor(values).nanmean()) for name, values in self.curves.items()}


def measure_likeness(recording: Recording, seed: int = 0) -> Likeness:
    """Compares every two of the images that were recorded one by one."""
    labels = recording.example_labels
    same_class = labels[:, None] == labels[None]
    pairs = torch.ones_like(same_class).triu(diagonal=1)
    same, other = pairs & same_class, pairs & ~same_class
    if not same.any() or not other.any():
        raise UserError("needs examples of the same class and of different ones; record more examples")
    generator = torch.Generator().manual_seed(seed)
    found = Likeness([], [], [], {"same_class": int(same.sum()), "other_classes": int(other.sum())})
    for layer in recording.layers.values():
        likeness = jaccard(layer.example_masks)
        found.same_class.append(_mean(likeness, same))
        found.other_classes.append(_mean(likeness, other))
        found.chance.append(_mean(jaccard(shuffled(layer.example_masks, generator)), pairs))
    return found


def jaccard(masks: Tensor) -> Tensor:
    """The index of each two images of masks ``[N, H, C]``, its mean over the heads that keep any, ``[N, N]``."""
    by_head = masks.double().transpose(0, 1)  # [H, N, C]
    both = by_head @ by_head.mT
    sizes = by_head.sum(2)
    either = sizes[:, :, None] + sizes[:, None] - both
    return (both / either).nanmean(0)


def shuffled(masks: Tensor, generator: torch.Generator) -> Tensor:
    """Masks with as many channels in every image and head, at random places."""
    order = torch.rand(masks.shape, generator=generator).argsort(-1)
    return masks.gather(-1, order)


def _mean(likeness: Tensor, pairs: Tensor) -> float:
    return float(likeness[pairs].nanmean())
