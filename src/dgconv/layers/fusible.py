"""Layers of torch's that take fewer kernels on a GPU. Names, parameters and results are torch's."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import fused
from ..ops.fused_autograd import whole_images


class BatchNormReLU2d(nn.BatchNorm2d):
    """``relu(BatchNorm2d(x))``; called with ``and_input=True`` also x, for what else uses it.

    Taken from here, the two gradients of x are added in the kernel that computes one of them.
    """

    def forward(self, x: Tensor, and_input: bool = False) -> Tensor | tuple[Tensor, Tensor]:  # type: ignore[override]
        can_fuse = fused.fits(x) and whole_images(x) and self.weight.dtype == torch.float32
        if self.training and can_fuse and self.momentum is not None:
            out, x = fused.batch_norm_relu(
                x, self.weight, self.bias, self.running_mean, self.running_var, self.momentum, self.eps  # type: ignore[arg-type]
            )  # fmt: skip
        elif not self.training and can_fuse and not torch.is_grad_enabled():
            out = fused.batch_norm_relu_eval(
                x, self.weight, self.bias, self.running_mean, self.running_var, self.eps  # type: ignore[arg-type]
            )  # fmt: skip
        else:
            out = F.relu(super().forward(x), inplace=True)
        return (out, x) if and_input else out


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

    def append_to(self, features: Tensor, x: Tensor, room: int) -> Tensor:
        """``cat([features, conv(x)], 1)``; on a GPU without a copy, if ``features`` was made like this.

        Args:
            room: channels that the features will have when nothing is appended any more.
        """
        watched = self._forward_hooks or self._forward_pre_hooks
        if self._can_fuse(x) and features.dtype == fused.result_dtype(x) and not watched:
            place = fused.take_room(features, room)
            return fused.append_grouped_conv3x3(features, place, x, self.weight, self.groups)
        return torch.cat([features, self(x)], 1)

    def _can_fuse(self, x: Tensor) -> bool:
        return fused.fits_images(self, x) and fused.fits_grouped_conv3x3(x)


def run_pointwise(conv: nn.Module, x: Tensor) -> Tensor:
    """``conv(x)``; in fewer kernels, if it is a plain 1x1 convolution of torch's that nobody watches."""
    if (
        type(conv) is nn.Conv2d
        and fused.fits_pointwise(conv, x)
        and not (conv._forward_hooks or conv._forward_pre_hooks)
    ):
        return fused.pointwise_conv(x, conv.weight, conv.groups)
    out: Tensor = conv(x)
    return out
