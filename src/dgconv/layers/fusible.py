"""Layers of torch's that train in fewer kernels on a GPU. Names, parameters and results are torch's."""

import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import fused


class BatchNormReLU2d(nn.BatchNorm2d):
    """``relu(BatchNorm2d(x))``."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and fused.fits(x) and x.is_contiguous() and self.momentum is not None:
            return fused.batch_norm_relu(
                x, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps  # type: ignore[arg-type]
            )  # fmt: skip
        return F.relu(super().forward(x), inplace=True)


class GroupedConv2d(nn.Conv2d):
    """``nn.Conv2d`` for groups of few channels each, where cuDNN is slow: 3x3, padding 1, no bias."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and fused.fits(x) and x.is_contiguous():
            return fused.grouped_conv3x3(x, self.weight, self.groups)
        return super().forward(x)
