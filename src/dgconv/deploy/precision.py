"""The precisions in which networks are prepared."""

from typing import Literal

from torch import Tensor, nn

from ..errors import UserError
from .compile.prepare import prepare
from .run.prepared import PreparedModel

Precision = Literal["float32", "int8"]


def prepare_as(
    model: nn.Module,
    precision: Precision,
    calibration: Tensor | None = None,
    freeze: Literal["auto"] | None = None,
    example: Tensor | None = None,
) -> PreparedModel:
    """``prepare`` in just this precision: in int8 also where that is slower, and refused where there is no such form.

    Args:
        calibration: images for int8 and ``freeze``, like those it will see.
        example: as ``prepare`` takes it, for code that branches on the size of images.
    """
    if precision == "float32":
        return prepare(model, example=example, calibration=calibration if freeze else None, freeze=freeze)
    prepared = prepare(model, example=example, precision=precision, calibration=calibration, force=True, freeze=freeze)
    if prepared.precision != precision:
        raise UserError(f"the network cannot be had in {precision} here: {'; '.join(prepared.notes)}")
    return prepared
