"""Augmenting a whole batch at once, so that small images need no worker processes."""

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_borders


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
    """Blank a square of `side` pixels in each normalised image [B, C, H, W]: the mean colour is 0 there.

    Its middle is at (rows[i], columns[i]), so that at the borders a part of it falls outside (DeVries & Taylor 2017).
    """
    height, width = images.shape[-2:]
    first_row, first_column = rows[:, None] - side // 2, columns[:, None] - side // 2
    row, column = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    in_rows = (row >= first_row) & (row < first_row + side)  # [B, H]
    in_columns = (column >= first_column) & (column < first_column + side)
    return images.masked_fill((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 0)
