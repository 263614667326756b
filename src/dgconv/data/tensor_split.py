"""Small images held in memory, as those of CIFAR."""

import copy
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_borders

from ..errors import UserError
from .draws import draw
from .in_memory import InMemorySplit, PixelsOf
from .stats import Stats


class TensorSplit(InMemorySplit):
    """Images uint8 [N, 3, H, W] and labels int64 [N].

    Training crops out of `pad` black pixels around the image and, with `flip`, mirrors half of the images. With
    `cutout` it blanks a square of so many pixels a side, somewhere in each image.
    """

    at_once = 2048

    def __init__(
        self, images: Tensor, labels: Tensor, stats: Stats, *, pad: int, flip: bool, cutout: int = 0, skipped: int = 0
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or not len(images):
            raise UserError(f"images are {images.dtype} {list(images.shape)}; give torch.uint8 [N, 3, H, W], N > 0.")
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise UserError(f"labels are {labels.dtype} {list(labels.shape)}; give torch.int64 [{len(images)}].")
        super().__init__(images, labels, stats, skipped)
        self.pad, self.flip, self.cutout = pad, flip, cutout

    def with_cutout(self, side: int) -> Self:
        split = copy.copy(self)
        split.cutout = side
        return split

    def pass_over(self, images: Tensor, train: bool, generator: torch.Generator | None) -> PixelsOf:
        device, normalize = images.device, self.stats.normalizer(images.device)
        if not train:
            return lambda chosen: normalize(images[chosen])
        rows, columns = draw(2 * self.pad + 1, (2, len(self)), generator).to(device)
        flipped = draw(2, (len(self),), generator).bool().to(device) & self.flip
        sides = images.shape[-2:] if self.cutout else ()
        middles = [draw(side, (len(self),), generator).to(device) for side in sides]

        def augmented(chosen: Tensor) -> Tensor:
            shifted = shift(images[chosen], self.pad, rows[chosen], columns[chosen])
            pixels = normalize(mirror(shifted, flipped[chosen]))
            return cut_out(pixels, self.cutout, *(middle[chosen] for middle in middles)) if middles else pixels

        return augmented


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
