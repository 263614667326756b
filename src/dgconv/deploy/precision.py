"""The precisions in which networks are prepared."""

import inspect
from typing import Any, Literal

from torch import Tensor, nn

from ..errors import UserError
from .compile.prepare import prepare
from .run.prepared import PreparedModel

Precision = Literal["float32", "int8"]


def prepare_as(model: nn.Module, precision: Precision, calibration: Tensor | None = None) -> PreparedModel:
    """``prepare`` in just this precision: in int8 also where that is slower, and refused where there is no such form.

    Args:
        calibration: images for int8, like those it will see.
    """
    if precision == "float32":
        return prepare(model)
    known = inspect.signature(prepare).parameters
    if "precision" not in known:
        raise UserError("this version of dgconv prepares networks in float32 only")
    prepare_int8: Any = prepare
    options = {"force": True} if "force" in known else {}
    prepared: PreparedModel = prepare_int8(model, precision=precision, calibration=calibration, **options)
    if getattr(prepared, "precision", precision) != precision:
        reasons = "; ".join(getattr(prepared.report(), "notes", ()))
        raise UserError(f"the network cannot be had in {precision} here: {reasons}")
    return prepared
