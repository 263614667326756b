"""A split decoded while it is used, for images too large or too many to keep in memory."""

import os
from collections.abc import Iterator
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import UserError
from .base import Batch
from .crops import central_view, random_view
from .decode import Encoded, decode
from .order import batches_of, draw, epoch_order
from .stats import Stats

IMAGE_SIZE = 224


class EncodedSplit:
    """Encoded images and their labels int64 [N], decoded by `workers` processes (0: by this one)."""

    def __init__(
        self,
        source: Encoded,
        labels: Tensor,
        stats: Stats,
        *,
        image_size: int = IMAGE_SIZE,
        workers: int | None = None,
    ) -> None:
        self.source, self.labels, self.stats = source, labels, stats
        self.image_size = image_size
        self.workers = default_workers() if workers is None else workers

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Self:
        """The images stay where they are, encoded."""
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
    ) -> Iterator[Batch]:
        """See `Split.batches`."""
        order = epoch_order(len(self), batch_size, train=train, generator=generator)
        seed = int(draw(2**63 - 1, (1,), generator)) if train else None
        epoch = _Epoch(self.source, self.labels, self.image_size, batches_of(order, batch_size, start, shard), seed)
        loader = DataLoader(
            epoch,
            batch_size=None,  # an item of the epoch is a batch already
            num_workers=min(self.workers, len(epoch)),
            pin_memory=torch.device(device).type == "cuda",
            generator=torch.Generator(),  # else the loader would draw from torch's global one
        )
        normalise = self.stats.normaliser(device)
        for batch in loader:
            if isinstance(batch, UserError):
                raise batch
            images, labels = (part.to(device, non_blocking=True) for part in batch)
            yield normalise(images), labels


class _Epoch(Dataset[Batch | UserError]):
    """The batches of one pass, as uint8 pixels: a quarter of the bytes to send between processes.

    A worker's exception would reach the user wrapped in a traceback of the worker's, so mistakes of the
    user's are returned instead.
    """

    def __init__(self, source: Encoded, labels: Tensor, size: int, batches: list[Tensor], seed: int | None) -> None:
        self.source, self.labels, self.size, self.batches, self.seed = source, labels, size, batches, seed

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> Batch | UserError:
        chosen = self.batches[number]
        try:
            pixels = np.stack([self._view(index) for index in chosen.tolist()])
        except UserError as error:
            return error
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), self.labels[chosen]

    def _view(self, index: int) -> np.ndarray:
        """Random by the seed of the pass and the image alone, so the number of workers changes nothing."""
        image = decode(self.source, index)
        if self.seed is None:
            return np.asarray(central_view(image, self.size))
        return np.asarray(random_view(image, self.size, np.random.default_rng((self.seed, index))))


def default_workers() -> int:
    """One a core this process may use; more than 8 rarely help one accelerator."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores)
