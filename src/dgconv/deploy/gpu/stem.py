"""The stem of a network for ImageNet and the max-pooling after it, as one layer."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph import Conv, Pool
from .forms import CUDNN, StemShape
from .layers import StaticConv

if TYPE_CHECKING:
    from ...ops.triton.stem_conv import StemTile


class Stem:
    def __init__(self, step: Conv, conv: StaticConv, output_order: Tensor, device: torch.device, dtype: torch.dtype):
        from ...ops.triton import stem_conv

        self.conv, self.outputs = conv, step.weight.shape[0]
        self.weight = stem_conv.lay_out(step.weight[output_order]).to(device, dtype)

    @staticmethod
    def fits(step: Conv, pool: Pool) -> bool:
        _, channels, *kernel = step.weight.shape
        return (
            (tuple(kernel), tuple(step.stride), tuple(step.padding)) == ((7, 7), (2, 2), (3, 3))
            and (tuple(pool.kernel), tuple(pool.stride), tuple(pool.padding)) == ((3, 3), (2, 2), (1, 1))
            and channels <= 4 and step.groups == 1 and tuple(step.dilation) == (1, 1) and not step.same
            and not any(step.extra_padding) and step.before is None and step.activation in ("identity", "relu", "relu6")
        )  # fmt: skip

    def shape(self, x: Tensor) -> StemShape:
        batch, channels, height, width = x.shape
        return StemShape(batch, channels, height, width, self.outputs, self.weight.dtype)

    def __call__(self, x: Tensor, form: "StemTile | str") -> tuple[Tensor, Tensor]:
        """What is pooled, and its sums."""
        from ...ops.triton import planes, stem_conv

        bias, activation = self.conv.bias, self.conv.step.activation
        if form == CUDNN:
            return planes.max_pool(self.conv.convolve(x), bias, activation, stem_conv.POOL)
        assert not isinstance(form, str)
        size = x.shape[2], x.shape[3]
        padded = stem_conv.pad(x, self.weight.dtype)
        if form.rows:
            return stem_conv.pooled(padded, self.weight, bias, activation, size, self.outputs, form)
        y = stem_conv.convolve(padded, self.weight, size, self.outputs, form)
        return planes.max_pool(y, bias, activation, stem_conv.POOL)
