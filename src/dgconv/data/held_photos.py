"""Photos kept in memory, a little larger than the network's input: decoded once, every crop a tensor operation."""

import copy
import math
from collections.abc import Callable
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from PIL.Image import Image, Resampling
from torch import Tensor

from ..errors import UserError
from .base import Data
from .crops import RATIO, SMALLEST, TRIES, central_view
from .decode import decode_all
from .draws import draw
from .encoded_split import EncodedSplit
from .in_memory import InMemorySplit, PixelsOf
from .stats import Stats
from .tensor_split import TensorSplit, mirror

LARGER = 1.25  # than the input: what a crop of two thirds of a photo needs
STEPS = 2**24  # of a random share; float32 has no more
MOST_BYTES = 8 * 2**30


def hold_photos(data: Data) -> Data:
    """The same data set with its photos decoded once and kept in memory; one that is kept there is left as it is."""
    train, test = data.train, data.test
    if not isinstance(train, EncodedSplit) or not isinstance(test, EncodedSplit):
        return data
    side = math.ceil(LARGER * train.image_size)
    held = 3 * (side**2 * len(train) + test.image_size**2 * len(test))
    if held > MOST_BYTES:
        raise UserError(
            f"`in_memory` would hold {held / 2**30:.0f} GiB of {data.name}, and at most {MOST_BYTES >> 30} are held. "
            "Leave it out, or give a smaller `image_size`"
        )
    whole, rows = _decode(train, lambda image: np.asarray(image.resize((side, side), Resampling.BILINEAR)), side)
    middles, test_rows = _decode(test, lambda image: np.asarray(central_view(image, test.image_size)), test.image_size)
    photos = HeldPhotos(whole, train.labels[rows], train.stats, train.image_size, skipped=len(train) - len(rows))
    photos.smallest_crop = train.smallest_crop
    seen = TensorSplit(
        middles, test.labels[test_rows], test.stats, pad=0, flip=False, skipped=len(test) - len(test_rows)
    )
    return Data(data.name, photos, seen, data.classes, data.input_size, data.mean, data.std)


def _decode(split: EncodedSplit, view: Callable[[Image], np.ndarray], side: int) -> tuple[Tensor, Tensor]:
    decoded = decode_all(split.source, (side, side), split.corrupt, split.workers, view)
    assert decoded is not None  # a view of any image has the size
    return decoded


class HeldPhotos(InMemorySplit):
    """Whole photos, each scaled to a square, uint8 [N, 3, S, S], and labels int64 [N], to train on.

    A training image is a random part of its photo, mirrored half of the time, as :mod:`dgconv.data.crops` draws it
    but for the ratio of its sides, which is that of the square. Without training, as to measure on training images,
    photos are whole.
    """

    at_once = 256
    smallest_crop = SMALLEST

    def __init__(self, images: Tensor, labels: Tensor, stats: Stats, image_size: int, *, skipped: int = 0) -> None:
        super().__init__(images, labels, stats, skipped)
        self.image_size = image_size

    def with_smallest_crop(self, share: float) -> Self:
        """The same images, of which a training crop covers at least this share."""
        split = copy.copy(self)
        split.smallest_crop = share
        return split

    def pass_over(self, images: Tensor, train: bool, generator: torch.Generator | None) -> PixelsOf:
        normalize = self.stats.normalizer(images.device)
        boxes, mirrored = (part.to(images.device) for part in self._draw(train, generator))
        return lambda chosen: mirror(crop(normalize(images[chosen]), boxes[chosen], self.image_size), mirrored[chosen])

    def _draw(self, train: bool, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The part of each photo that a pass shows, and whether mirrored."""
        count = len(self)
        if not train:
            return torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(count, 4), torch.zeros(count, dtype=torch.bool)
        shares = draw(STEPS, (2, TRIES, count), generator).float() / STEPS
        places = draw(STEPS, (2, count), generator).float() / STEPS
        boxes = random_boxes(shares[0], shares[1], places[0], places[1], self.smallest_crop)
        return boxes, draw(2, (count,), generator).bool()


def random_boxes(area: Tensor, ratio: Tensor, left: Tensor, upper: Tensor, smallest: float) -> Tensor:
    """Parts of squares of side 1 as [N, 4]: left, upper, right, lower. All that is random is given, from 0 to 1; of
    areas and ratios [tries, N], of which the first that fit are taken."""
    area = smallest + area * (1 - smallest)
    ratio = torch.exp(math.log(RATIO[0]) + ratio * math.log(RATIO[1] / RATIO[0]))
    width, height = (area * ratio).sqrt(), (area / ratio).sqrt()
    fits = (width <= 1) & (height <= 1)
    first = fits.int().argmax(0, keepdim=True)  # of equal ones the first
    width, height = (torch.where(fits.any(0), side.gather(0, first)[0], 1.0) for side in (width, height))
    left, upper = left * (1 - width), upper * (1 - height)
    return torch.stack([left, upper, left + width, upper + height], 1)


def crop(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Of each image [B, C, S, S] the part within its box, scaled to size x size."""
    pixel = (torch.arange(size, device=images.device, dtype=images.dtype) + 0.5) / size
    left, upper, right, lower = boxes.to(images.dtype).unbind(1)
    columns = left[:, None] + pixel * (right - left)[:, None]
    rows = upper[:, None] + pixel * (lower - upper)[:, None]
    grid = torch.stack(
        [columns[:, None, :].expand(-1, size, -1), rows[:, :, None].expand(-1, -1, size)], 3
    )  # x and y of every pixel
    return F.grid_sample(images, 2 * grid - 1, mode="bilinear", padding_mode="border", align_corners=False)
