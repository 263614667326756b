"""The precisions in which networks are prepared."""

import inspect
from typing import Any, Literal

from torch import Tensor, nn

from ..errors import UserError
from .compile.prepare import prepare
from .run.prepared import PreparedModel

Precision = Literal["float32", "int8"]


def prepare_as(model: nn.Module, precision: Precision, calibration: Tensor | None = None) -> PreparedModel:
    """``prepare`` in either precision. ``calibration``: images for int8, like those it will see."""
    if precision == "float32":
        return prepare(model)
    if "precision" not in inspect.signature(prepare).parameters:
        raise UserError("this version of dgconv prepares networks in float32 only")
    prepare_int8: Any = prepare
    prepared: PreparedModel = prepare_int8(model, precision=precision, calibration=calibration)
    return prepared
