"""What the rest of the library knows about data: two splits, their classes and their input size."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ..errors import UserError
from .draws import shuffled

RGB = tuple[float, float, float]
Batch = tuple[Tensor, Tensor]  # images float32 [B, 3, H, W], normalized; labels int64 [B]
OnSkip = Callable[[int], None]


@dataclass(frozen=True)
class Pass:
    """One pass over a split, as it is asked for: :meth:`Split.batches` has the words.

    Which images it visits, in which order, is the same rule for every kind of split.
    """

    batch_size: int
    train: bool
    generator: torch.Generator | None
    device: torch.device | str
    start: int
    shard: tuple[int, int]
    on_skip: OnSkip | None

    def order(self, count: int) -> Tensor:
        """The indices of so many images as they are visited, for :meth:`batches_of`.

        Training drops the last incomplete batch, whose few images would get a larger say each and noisy batch
        statistics, unless it is the only one.
        """
        if self.batch_size < 1:
            raise UserError(f"batch size {self.batch_size} is not allowed; give a whole number of at least 1.")
        if not self.train:
            return torch.arange(count)
        whole = count // self.batch_size * self.batch_size
        return shuffled(count, self.generator)[: max(whole, min(count, self.batch_size))]

    def batches_of(self, order: Tensor) -> list[Tensor]:
        """The indices of each batch from the first asked for on, or what one process of several takes of them."""
        first, every = self.shard
        shares = [batch[first::every] for batch in order.split(self.batch_size)[self.start :]]
        return [share for share in shares if len(share)]


class Split(ABC):
    """One part of a data set, wherever its images are kept and however they are read."""

    labels: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Self:
        """The same split kept on a device, if its images are held in memory."""
        return self

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
        return self.go_over(Pass(batch_size, train, generator, device, start, shard, on_skip))

    @abstractmethod
    def go_over(self, asked: Pass) -> Iterator[Batch]:
        """The batches of one pass."""


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
