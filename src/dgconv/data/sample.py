"""A few images that stand for all of a split."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .base import Split


def sample(
    split: Split, count: int, batch_size: int | None = None, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Takes so many images at most, in batches or all at once: every n-th of the split; it may be sorted by class."""
    every = -(-len(split) // count)
    for x, _ in split.batches((batch_size or count) * every, train=False, shard=(0, every), device=device):
        yield x
