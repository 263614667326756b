"""What the rest of the library knows about data: two splits, their classes and their input size."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

RGB = tuple[float, float, float]
Batch = tuple[Tensor, Tensor]  # images float32 [B, 3, H, W], normalised; labels int64 [B]


class Split(Protocol):
    """One part of a data set, wherever its images are kept and however they are read."""

    def __len__(self) -> int: ...

    def batches(
        self,
        batch_size: int,
        *,
        train: bool,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> Iterator[Batch]:
        """One pass over the images.

        With `train`, shuffled and augmented by `generator`, without the last incomplete batch (a split
        smaller than one batch gives one short batch). Otherwise every image once, in order, untouched.
        """
        ...


@dataclass(frozen=True)
class Data:
    """A data set ready to train on; `mean` and `std` (per channel, of 0..1 pixels) normalise its images."""

    name: str
    train: Split
    test: Split
    classes: list[str]
    input_size: tuple[int, int, int]
    mean: RGB
    std: RGB
