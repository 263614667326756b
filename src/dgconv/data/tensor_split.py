"""A split held in memory, for small images: no worker processes, every step one tensor operation."""

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_borders

from ..errors import UserError
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
        normalize = self.stats.normalizer(device)
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
            pixels = normalize(pixels)
            if train and self.cutout:
                pixels = cut_out(pixels, self.cutout, middles[0][chosen], middles[1][chosen])
            yield from zip(pixels.split(sizes), labels[chosen].split(sizes), strict=True)


# -- augmenting a whole batch at once ------------------------------------------------------------------------------


def shift(images: Tensor, pad: int, rows: Tensor, columns: Tensor) -> Tensor:
    """Crop each image [B, C, H, W] back to its size out of a border of `pad` black pixels.

    Image i becomes the window whose corner is (rows[i], columns[i]), each in 0..2 * pad.
    """
    height, width = images.shape[-2:]
    padded = pad_borders(images, (pad, pad, pad, pad))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: [B, C, 2p+1, 2p+1, H, W]
    return windows[torch.arange(len(images), device=images.device), :, rows, columns]


def mirror(images: Tensor, chosen: Tensor) -> Tensor:
    """Flip left and right the images where `chosen` [B] is true."""
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)


def cut_out(images: Tensor, side: int, rows: Tensor, columns: Tensor) -> Tensor:
    """Blank a square of `side` pixels in each normalized image [B, C, H, W]: the mean colour is 0 there.

    Its middle is at (rows[i], columns[i]), so that at the borders a part of it falls outside (DeVries & Taylor 2017).
    """
    height, width = images.shape[-2:]
    first_row, first_column = rows[:, None] - side // 2, columns[:, None] - side // 2
    row, column = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    in_rows = (row >= first_row) & (row < first_row + side)  # [B, H]
    in_columns = (column >= first_column) & (column < first_column + side)
    return images.masked_fill((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 0)
