"""Layers of torch's that take fewer kernels on a GPU. Names, parameters and results are torch's."""

import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import fused


class BatchNormReLU2d(nn.BatchNorm2d):
    """``relu(BatchNorm2d(x))``; called with ``and_input=True`` also x, for what else uses it.

    Taken from here, the two gradients of x are added in the kernel that computes one of them.
    """

    def forward(self, x: Tensor, and_input: bool = False) -> Tensor | tuple[Tensor, Tensor]:  # type: ignore[override]
        if self.training and fused.fits(x) and x.is_contiguous() and self.momentum is not None:
            out, x = fused.batch_norm_relu(
                x, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps  # type: ignore[arg-type]
            )  # fmt: skip
        else:
            out = F.relu(super().forward(x), inplace=True)
        return (out, x) if and_input else out


class HalvingAvgPool2d(nn.AvgPool2d):
    """``nn.AvgPool2d(2)``."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        is_even = x.shape[-1] % 2 == x.shape[-2] % 2 == 0
        return fused.average_pool2x2(x) if self.training and is_even and fused.fits(x) else super().forward(x)


class GroupedConv2d(nn.Conv2d):
    """``nn.Conv2d`` for groups of few channels each, where cuDNN is slow: 3x3, padding 1, no bias."""

    def forward(self, x: Tensor) -> Tensor:
        if fused.fits(x) and x.is_contiguous() and fused.fits_grouped_conv3x3(x):
            return fused.grouped_conv3x3(x, self.weight, self.groups)
        return super().forward(x)
