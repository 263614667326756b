"""Scikit-learn's embedded handwritten digits: something real to train on, offline and in seconds."""

import torch
from torch.nn.functional import interpolate

from .base import Data
from .facts import DataFacts, DataSetRecord
from .stats import measure
from .tensor_split import TensorSplit

SIDE = 32
TEST_EVERY = 5  # every fifth image is for testing
WHITE = 16  # the brightest value of the originals
RECORD = DataSetRecord(facts=DataFacts(1437, 10, SIDE), short_training={"epochs": 15, "image_size": 16})


def load_digits(image_size: int | None = None) -> Data:
    """1437 training and 360 test images, enlarged smoothly from 8 x 8 and grey in three channels."""
    from sklearn import datasets  # takes a second to import

    side = image_size or SIDE
    digits = datasets.load_digits()
    grey = torch.from_numpy(digits.images)[:, None] * (255 / WHITE)
    enlarged = interpolate(grey, size=(side, side), mode="bilinear", align_corners=False)
    images = enlarged.round().to(torch.uint8).repeat(1, 3, 1, 1)
    labels = torch.from_numpy(digits.target).long()

    test = torch.arange(len(labels)) % TEST_EVERY == 0
    stats = measure(images[~test])
    pad = side // 16  # 2 for the usual 32; a mirrored digit is not a digit
    return Data(
        "digits",
        TensorSplit(images[~test], labels[~test], stats, pad=pad, flip=False),
        TensorSplit(images[test], labels[test], stats, pad=pad, flip=False),
        [str(digit) for digit in range(10)],
        (3, side, side),
        *stats,
    )
