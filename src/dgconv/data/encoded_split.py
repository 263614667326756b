"""A split decoded while it is used, for images too large or too many to keep in memory."""

import copy
import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import UserError
from .base import Batch, Pass, Split
from .corrupt import CorruptImage, CorruptImages
from .crops import SMALLEST, central_view, random_view
from .decode import Encoded, decode_and, default_workers, none_readable
from .draws import draw
from .stats import Stats

IMAGE_SIZE = 224
View = Callable[[Image.Image], Image.Image]


class EncodedSplit(Split):
    """Encoded images and their labels int64 [N], decoded by `workers` processes (0: by this one).

    `view` makes of an image what is evaluated, of these `sides` (height, width); by default its middle, a square.
    """

    def __init__(
        self,
        source: Encoded,
        labels: Tensor,
        stats: Stats,
        *,
        image_size: int = IMAGE_SIZE,
        workers: int | None = None,
        corrupt: CorruptImages | None = None,
        smallest_crop: float = SMALLEST,
        view: View | None = None,
        sides: tuple[int, int] | None = None,
    ) -> None:
        self.source, self.labels, self.stats = source, labels, stats
        self.image_size = image_size
        self.workers = default_workers() if workers is None else workers
        self.corrupt = corrupt or CorruptImages()
        self.smallest_crop = smallest_crop
        self.view, self.sides = view or partial(central_view, size=image_size), sides or (image_size, image_size)

    def with_smallest_crop(self, share: float) -> Self:
        """The same images, of which a training crop covers at least this share."""
        split = copy.copy(self)
        split.smallest_crop = share
        return split

    def go_over(self, asked: Pass) -> Iterator[Batch]:
        order = asked.order(len(self))
        crops = Crops(int(draw(2**63 - 1, (1,), asked.generator)), self.smallest_crop) if asked.train else None
        batches = asked.batches_of(order)
        epoch = _Epoch(self.source, self.labels, self.sides, batches, crops, self.view, self.corrupt.skip)
        loader = DataLoader(
            epoch,
            batch_size=None,  # an item of the epoch is a batch already
            num_workers=min(self.workers, len(epoch)),
            pin_memory=torch.device(asked.device).type == "cuda",
            generator=torch.Generator(),  # else the loader would draw from torch's global one
        )
        normalize = self.stats.normalizer(asked.device)
        for batch in loader:
            if isinstance(batch, UserError):
                raise batch
            for error in batch[2]:
                self.corrupt.meet(error)
            if batch[2] and asked.on_skip:
                asked.on_skip(len(batch[2]))
            images, labels = (part.to(asked.device, non_blocking=True) for part in batch[:2])
            if len(labels):
                yield normalize(images), labels


ReadBatch = tuple[Tensor, Tensor, list[CorruptImage]]


class Crops(NamedTuple):
    """What decides about the random parts of images that one pass shows."""

    seed: int
    smallest: float


class _Epoch(Dataset[ReadBatch | UserError]):
    """The batches of one pass, as uint8 pixels: a quarter of the bytes to send between processes.

    With each batch come the errors of its images that were skipped. A worker's exception would reach the user
    wrapped in a traceback of the worker's, so mistakes of the user's are returned instead.
    """

    def __init__(
        self,
        source: Encoded,
        labels: Tensor,
        sides: tuple[int, int],
        batches: list[Tensor],
        crops: Crops | None,
        untouched: View,
        skip: bool,
    ) -> None:
        self.source, self.labels, self.sides, self.batches = source, labels, sides, batches
        self.crops, self.untouched, self.skip = crops, untouched, skip
        self.one_at_a_time = multiprocessing.Lock()  # for large images: each of several workers may meet one

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> ReadBatch | UserError:
        pixels = np.empty((len(self.batches[number]), *self.sides, 3), np.uint8)
        used: list[int] = []
        skipped: list[CorruptImage] = []
        try:
            for index in self.batches[number].tolist():
                try:
                    pixels[len(used)] = self._view(index, index)
                except CorruptImage as error:
                    if not self.skip:
                        raise
                    skipped.append(error)
                    if self.crops is None:
                        continue
                    pixels[len(used)], index = self._replacement(index)
                used.append(index)
        except UserError as error:
            return error
        images = torch.from_numpy(pixels[: len(used)]).permute(0, 3, 1, 2).contiguous()
        return images, self.labels[used], skipped

    def _replacement(self, corrupt: int) -> tuple[np.ndarray, int]:
        """The next good image of the split, which depends on nothing else, and its index."""
        for index in (*range(corrupt + 1, len(self.source)), *range(corrupt)):
            try:
                return self._view(index, corrupt), index
            except CorruptImage:  # is told of where it is itself in a batch
                continue
        raise none_readable(self.source)

    def _view(self, index: int, place: int) -> np.ndarray:
        """Random by the seed of the pass and the image's place alone, so the number of workers changes nothing."""

        def view(image: Image.Image) -> np.ndarray:
            if self.crops is None:
                return np.asarray(self.untouched(image))
            rng = np.random.default_rng((self.crops.seed, place))
            return np.asarray(random_view(image, self.sides[0], rng, self.crops.smallest))

        return decode_and(view, self.source, index, self.one_at_a_time)
