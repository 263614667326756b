"""A split held in memory, for small images: no worker processes, every step one tensor operation."""

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from ..errors import UserError
from .augment import cut_out, mirror, shift
from .base import Batch, OnSkip
from .order import batches_of, draw, epoch_order
from .stats import Stats

GROUP = 2048  # images prepared at once: a dozen operations for many batches instead of for each


class TensorSplit:
    """Images uint8 [N, 3, H, W] and labels int64 [N].

    Training crops out of `pad` black pixels around the image and, with `flip`, mirrors half of the images. With
    `cutout` it blanks a square of so many pixels a side, somewhere in each image.
    `skipped` corrupt images were left out beforehand; every pass tells of them.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, stats: Stats, *, pad: int, flip: bool, cutout: int = 0, skipped: int = 0
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or not len(images):
            raise UserError(f"images are {images.dtype} {list(images.shape)}; give torch.uint8 [N, 3, H, W], N > 0.")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise UserError(f"labels are {labels.dtype} {list(labels.shape)}; give torch.int64 [{len(images)}].")
        self.images, self.labels, self.stats, self.pad, self.flip = images, labels, stats, pad, flip
        self.cutout, self.skipped = cutout, skipped

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Self:
        """The same split kept on `device`, which spares `batches` the copy at the start of each pass."""
        images, labels = self.images.to(device), self.labels.to(device)
        return self._with(images, labels, self.cutout)

    def with_cutout(self, side: int) -> Self:
        return self._with(self.images, self.labels, side)

    def _with(self, images: Tensor, labels: Tensor, cutout: int) -> Self:
        options = {"pad": self.pad, "flip": self.flip, "cutout": cutout, "skipped": self.skipped}
        return type(self)(images, labels, self.stats, **options)  # type: ignore[arg-type]

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
        """See `Split.batches`.

        The images and all random numbers of the pass go to `device` first: from then on the host only
        queues work and never waits for the accelerator.
        """
        order = epoch_order(len(self), batch_size, train=train, generator=generator).to(device)
        images, labels = self.images.to(device), self.labels.to(device)
        normalise = self.stats.normaliser(device)
        if train:
            rows, columns = draw(2 * self.pad + 1, (2, len(self)), generator).to(device)
            flipped = draw(2, (len(self),), generator).bool().to(device) & self.flip
            if self.cutout:
                height, width = images.shape[-2:]
                middles = [draw(size, (len(self),), generator).to(device) for size in (height, width)]

        batches = batches_of(order, batch_size, start, shard)
        if on_skip and self.skipped and start == 0 and shard[0] == 0:  # once for all processes
            on_skip(self.skipped)
        together = max(1, GROUP // batch_size)
        for first in range(0, len(batches), together):
            group = batches[first : first + together]
            chosen, sizes = torch.cat(group), [len(batch) for batch in group]
            pixels = images[chosen]
            if train:
                pixels = mirror(shift(pixels, self.pad, rows[chosen], columns[chosen]), flipped[chosen])
            pixels = normalise(pixels)
            if train and self.cutout:
                pixels = cut_out(pixels, self.cutout, middles[0][chosen], middles[1][chosen])
            yield from zip(pixels.split(sizes), labels[chosen].split(sizes), strict=True)
