"""A split held in memory: no worker processes, every step one tensor operation for many batches."""

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Self

import torch
from torch import Tensor

from .base import Batch, Pass, Split
from .stats import Stats

PixelsOf = Callable[[Tensor], Tensor]  # what the network is given of chosen images


class InMemorySplit(Split):
    """Images uint8 [N, 3, H, W] and labels int64 [N]; ``skipped`` corrupt ones were left out, as every pass tells."""

    at_once: ClassVar[int]  # images prepared together: a dozen operations for many batches instead of for each

    def __init__(self, images: Tensor, labels: Tensor, stats: Stats, skipped: int) -> None:
        self.images, self.labels, self.stats, self.skipped = images, labels, stats, skipped

    def to(self, device: torch.device | str) -> Self:
        """The same split kept on ``device``, which spares ``batches`` the copy at the start of each pass."""
        split = copy.copy(self)
        split.images, split.labels = self.images.to(device), self.labels.to(device)
        return split

    def go_over(self, asked: Pass) -> Iterator[Batch]:
        """The batches of one pass.

        The images and all random numbers of the pass go to its device first: from then on the host only queues work and
        never waits for the accelerator.
        """
        order = asked.order(len(self)).to(asked.device)
        images, labels = self.images.to(asked.device), self.labels.to(asked.device)
        pixels_of = self.pass_over(images, asked.train, asked.generator)
        batches = asked.batches_of(order)
        if asked.on_skip and self.skipped and asked.start == 0 and asked.shard[0] == 0:  # once for all processes
            asked.on_skip(self.skipped)
        together = max(1, self.at_once // asked.batch_size)
        for first in range(0, len(batches), together):
            group = batches[first : first + together]
            chosen, sizes = torch.cat(group), [len(batch) for batch in group]
            yield from zip(pixels_of(chosen).split(sizes), labels[chosen].split(sizes), strict=True)

    @abstractmethod
    def pass_over(self, images: Tensor, train: bool, generator: torch.Generator | None) -> PixelsOf:
        """Draws all that is random in a pass over the images, which are on its device."""
