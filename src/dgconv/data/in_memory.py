"""A split held in memory: no worker processes, every step one tensor operation for many batches."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Self

import torch
from torch import Tensor

from .base import Batch, OnSkip
from .order import batches_of, epoch_order
from .stats import Stats

PixelsOf = Callable[[Tensor], Tensor]  # what the network is given of chosen images


class InMemorySplit(ABC):
    """Images uint8 [N, 3, H, W] and labels int64 [N]; ``skipped`` corrupt ones were left out, as every pass tells."""

    at_once: ClassVar[int]  # images prepared together: a dozen operations for many batches instead of for each

    def __init__(self, images: Tensor, labels: Tensor, stats: Stats, skipped: int) -> None:
        self.images, self.labels, self.stats, self.skipped = images, labels, stats, skipped

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Self:
        """The same split kept on ``device``, which spares ``batches`` the copy at the start of each pass."""
        split = copy.copy(self)
        split.images, split.labels = self.images.to(device), self.labels.to(device)
        return split

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
        """See ``Split.batches``.

        The images and all random numbers of the pass go to ``device`` first: from then on the host only queues work and
        never waits for the accelerator.
        """
        order = epoch_order(len(self), batch_size, train=train, generator=generator).to(device)
        images, labels = self.images.to(device), self.labels.to(device)
        pixels_of = self.pass_over(images, train, generator)
        batches = batches_of(order, batch_size, start, shard)
        if on_skip and self.skipped and start == 0 and shard[0] == 0:  # once for all processes
            on_skip(self.skipped)
        together = max(1, self.at_once // batch_size)
        for first in range(0, len(batches), together):
            group = batches[first : first + together]
            chosen, sizes = torch.cat(group), [len(batch) for batch in group]
            yield from zip(pixels_of(chosen).split(sizes), labels[chosen].split(sizes), strict=True)

    @abstractmethod
    def pass_over(self, images: Tensor, train: bool, generator: torch.Generator | None) -> PixelsOf:
        """Draws all that is random in a pass over the images, which are on its device."""
