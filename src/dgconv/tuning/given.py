"""Data that a program has in its hands, batches of images and labels, as a data set to train on."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..data import Data
from ..data.base import Batch, Pass, Split
from ..errors import UserError


class LoaderSplit(Split):
    """Anything that gives batches (images, labels) when it is iterated, again and again, as a ``DataLoader``.

    It augments and shuffles as it likes; images are regrouped to the size of batch that is asked for.
    """

    def __init__(self, batches: Iterable[Any], name: str) -> None:
        self.source, self.name = batches, name
        parts = [labels for _, labels in self._given()]
        if not parts:
            raise UserError(f"`{name}` gave no batch; it must give (images, labels) each time it is iterated")
        self.labels = torch.cat(parts)
        if len(self.labels) and next(iter(self._given()), None) is None:
            raise UserError(f"`{name}` can be iterated only once; give a DataLoader or a list of batches")

    def _given(self) -> Iterator[Batch]:
        for batch in self.source:
            is_pair = isinstance(batch, tuple | list) and len(batch) == 2
            if not is_pair or not all(isinstance(part, Tensor) for part in batch):
                raise UserError(
                    f"`{self.name}` must give pairs of tensors (images, labels), got a {type(batch).__name__}"
                )
            images, labels = batch
            if images.dim() != 4 or not images.is_floating_point() or labels.shape != images.shape[:1]:
                raise UserError(
                    f"`{self.name}` must give float images [batch, channels, height, width] and labels [batch], got "
                    f"{images.dtype} {list(images.shape)} and {list(labels.shape)}"
                )
            yield images.float(), labels.long()

    def go_over(self, asked: Pass) -> Iterator[Batch]:
        """Only a share of each batch is held in memory."""
        which, of = asked.shard
        size = min(asked.batch_size, len(self))
        total = len(self) // size if asked.train else -(-len(self) // size)
        kept: list[Batch] = []
        number, place = 0, 0  # of the batch, and in it
        for images, labels in self._given():
            while len(labels) and number < total:
                taken = min(size - place, len(labels))
                mine = torch.arange(taken)
                mine = mine[(mine + place) % of == which]
                if number >= asked.start and len(mine):
                    kept.append((images[mine], labels[mine]))
                images, labels = images[taken:], labels[taken:]
                place += taken
                if place == size:
                    if kept:
                        yield _joined(kept, asked.device)
                    kept, number, place = [], number + 1, 0
        if kept and not asked.train:
            yield _joined(kept, asked.device)


def _joined(parts: list[Batch], device: torch.device | str) -> Batch:
    images, labels = (torch.cat([part[i] for part in parts]).to(device) for i in (0, 1))
    return images, labels


def data_of(train: Any, test: Any) -> Data:
    """The data set that two loaders, or two splits, make."""
    splits = [
        part if hasattr(part, "batches") else LoaderSplit(part, name)
        for part, name in ((train, "train"), (test, "test"))
    ]
    count = int(max(int(split.labels.max()) for split in splits)) + 1
    images, _ = next(iter(splits[1].batches(1, train=False)))
    _, channels, height, width = images.shape
    unknown = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)  # images come as they are normalized
    return Data("given", splits[0], splits[1], [str(n) for n in range(count)], (channels, height, width), *unknown)
