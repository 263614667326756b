"""What the rest of the library knows about data: two splits, their classes and their input size."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

RGB = tuple[float, float, float]
Batch = tuple[Tensor, Tensor]  # images float32 [B, 3, H, W], normalized; labels int64 [B]
OnSkip = Callable[[int], None]


class Split(Protocol):
    """One part of a data set, wherever its images are kept and however they are read."""

    labels: Tensor  # int64 [N]

    def __len__(self) -> int: ...

    def to(self, device: torch.device | str) -> Self:
        """The same split kept on a device, if its images are held in memory."""
        ...

    def batches(
        self,
        batch_size: int,
        *,
        train: bool,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
        start: int = 0,
        shard: tuple[int, int] = (0, 1),
        on_skip: OnSkip | None = None,
    ) -> Iterator[Batch]:
        """One pass over the images, or from its batch number `start` on the rest of it.

        With `train`, shuffled and augmented by `generator`, without the last incomplete batch (a split
        smaller than one batch gives one short batch). Otherwise every image once, in order, untouched.
        With `shard` (i, n) only every n-th image of each batch, from the i-th on: the share of one process.

        Corrupt images, where they are skipped at all, are told to `on_skip` by their number. They never change the
        size of a training batch: one found on the way is replaced by the next good image of the split, with that
        image's label. Evaluation leaves them out, so there a batch may be smaller.
        """
        ...


@dataclass(frozen=True)
class Data:
    """A data set ready to train on; `mean` and `std` (per channel, of 0..1 pixels) normalize its images."""

    name: str
    train: Split
    test: Split
    classes: list[str]
    input_size: tuple[int, int, int]
    mean: RGB
    std: RGB

    def to(self, device: torch.device | str) -> "Data":
        """The same data with both splits kept on a device, if they are held in memory."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))
