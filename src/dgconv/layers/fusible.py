"""Layers of torch's that take fewer kernels on a GPU. Names, parameters and results are torch's."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import fused
from ..ops.fused_autograd import whole_images
from .dynamic_group_conv import DynamicGroupConv2d


class BatchNormReLU2d(nn.BatchNorm2d):
    """``relu(BatchNorm2d(x))``; called with ``and_more=True`` also x, for what else uses it, and the means of the
    result's planes, for a gate that comes next, if a kernel has them at hand.

    Taken from here, the two gradients of x are added in the kernel that computes one of them.
    """

    def forward(self, x: Tensor, and_more: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor | None]:  # type: ignore[override]
        means: Tensor | None = None
        can_fuse = fused.fits(x) and whole_images(x) and self.weight.dtype == torch.float32
        if self.training and can_fuse and self.momentum is not None:
            out, x, means = fused.batch_norm_relu(
                x, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps  # type: ignore[arg-type]
            )  # fmt: skip
        elif not self.training and can_fuse and not torch.is_grad_enabled():
            out, means = fused.batch_norm_relu_eval(
                x, self.weight, self.bias, self.running_mean, self.running_var, self.eps  # type: ignore[arg-type]
            )  # fmt: skip
        else:
            out = F.relu(super().forward(x), inplace=True)
        return (out, x, means) if and_more else out


class HalvingAvgPool2d(nn.AvgPool2d):
    """``nn.AvgPool2d(2)``."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and fused.fits(x) and x.dim() == 4 and x.shape[-1] % 2 == x.shape[-2] % 2 == 0:
            return fused.average_pool2x2(x)
        return super().forward(x)


class GroupedConv2d(nn.Conv2d):
    """``nn.Conv2d`` for groups of few channels each, where cuDNN is slow: 3x3, padding 1, no bias."""

    def forward(self, x: Tensor) -> Tensor:
        return fused.grouped_conv3x3(x, self.weight, self.groups) if self._can_fuse(x) else super().forward(x)

    def append_to(self, features: Tensor, x: Tensor, room: fused.Room | None = None) -> Tensor:
        """``cat([features, conv(x)], 1)``; on a GPU without a copy, if the features have grown in this room before."""
        watched = self._forward_hooks or self._forward_pre_hooks
        if room is not None and self._can_fuse(x) and features.dtype == fused.result_dtype(x) and not watched:
            return fused.append_grouped_conv3x3(features, room, x, self.weight, self.groups)
        return torch.cat([features, self(x)], 1)

    def _can_fuse(self, x: Tensor) -> bool:
        return fused.fits_images(self, x) and fused.fits_grouped_conv3x3(x)


def run_pointwise(conv: nn.Module, x: Tensor, means: Tensor | None = None) -> Tensor:
    """``conv(x)``; in fewer kernels, if it is a plain 1x1 convolution of torch's that nobody watches.

    The means of x are for a convolution that has a gate.
    """
    if isinstance(conv, DynamicGroupConv2d) and isinstance(means, Tensor):
        out: Tensor = conv(x, means)
        return out
    if (
        type(conv) is nn.Conv2d
        and fused.fits_pointwise(conv, x)
        and not (conv._forward_hooks or conv._forward_pre_hooks)
    ):
        return fused.pointwise_conv(x, conv.weight, conv.groups)
    out = conv(x)
    return out
