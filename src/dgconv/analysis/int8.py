"""A network in int8: prepared with the ranges of numbers that images show."""

import inspect
from typing import Any

from torch import Tensor, nn

from ..data import Split
from ..data.sample import sample
from ..deploy import PreparedModel, prepare
from ..errors import UserError

CALIBRATION_IMAGES = 300


def prepare_int8(model: nn.Module, images: Tensor) -> PreparedModel:
    """``prepare`` in int8; refused by a version of dgconv that has float32 alone."""
    prepare_as: Any = prepare
    if "precision" not in inspect.signature(prepare).parameters:
        raise UserError("this version of dgconv prepares networks in float32 alone; use `precision` float32")
    prepared: PreparedModel = prepare_as(model, precision="int8", calibration=images)
    return prepared


def images_to_calibrate(train_split: Split) -> Tensor:
    """Training images without augmentation, the same ones each time."""
    return next(sample(train_split, CALIBRATION_IMAGES))
