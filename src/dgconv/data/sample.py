"""A few images that stand for all of a split."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .base import Batch, Split


def sample(
    split: Split, count: int, batch_size: int | None = None, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """Takes so many images at most, in batches or all at once: every n-th of the split; it may be sorted by class."""
    for x, _ in labelled_sample(split, count, batch_size, device):
        yield x


def labelled_sample(
    split: Split, count: int, batch_size: int | None = None, device: torch.device | str = "cpu"
) -> Iterator[Batch]:
    """The same with their labels."""
    every = -(-len(split) // count)
    yield from split.batches((batch_size or count) * every, train=False, shard=(0, every), device=device)
