"""Low-cost collaborative layer (LCCN), Dong et al., CVPR 2017: a 1x1 convolution tells where to skip a larger one."""

import math
from statistics import NormalDist
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.geometry import Pair, Size2, pair
from ..values import BETWEEN, FACTOR, POSITIVE
from ._conv import resolve_padding, takes_images
from .method import DENSE_ANYWAY, Knob, MacCall, Method, MethodLayer, register_method


class LowCostCollaborativeConv2d(MethodLayer, nn.Conv2d):
    r"""Multiplies the convolution by a cheap one whose ReLU is often zero; there the convolution is not needed.

    .. math:: x' = \mathrm{BN}(W * x) \cdot \min(1, (\mathrm{BN}(W_{1 \times 1} * x))_+)

    The paper has a ReLU on the left factor too; one that follows in the network does the same, the right factor not
    being negative. (At the end of a ResNet's block it comes after the addition only, and what is added has both signs.)
    Nothing pushes the branch to zero but its own batch norm. The layer ``normalizes``: no batch norm follows.

    The ceiling is not in the paper. Without it every layer squares the scale of an image relative to the others of its
    batch, which a batch norm cannot undo: a ResNet-20 of such layers does not learn (digits: 93 % error after five
    epochs, 6 % with it).

    The branch costs 1/k² of the convolution. For a 1x1 convolution that is all of it, so that one is left as it is: a
    plain convolution, which does not normalize.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as in ``nn.Conv2d``;
            but no bias unless asked for.
        open_share: share of the outputs that the branch leaves open at the start, were they normally distributed. The
            paper: a half, as any fresh batch norm. Training may move it.
        ceiling: largest value of the branch; None as in the paper.
        l1_weight: weight of the mean over images of the sum of the branch, that of the last call, in the loss. Its
            paper has none. Without a ceiling it means nothing: half the branch and twice the other factor are the same
            function, at half the loss.
    """

    offset: Tensor | None
    """Taken from the branch, and not learned: a MAC budget moves it, for all layers alike."""

    cost_depends_on_image = True
    branch_sum: Tensor | None = None
    budget_advice = ("another `model`", "a smaller `open_share`")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2,
        stride: Size2 = 1,
        padding: Size2 | str = 0,
        dilation: Size2 = 1,
        groups: int = 1,
        bias: bool = False,
        *,
        open_share: float = 0.5,
        ceiling: float | None = 1.0,
        l1_weight: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        LCCN.check(open_share=open_share, l1_weight=l1_weight)
        if ceiling is not None:
            LCCN.check(ceiling=ceiling)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            device=device, dtype=dtype,
        )  # fmt: skip
        self.open_share, self.ceiling, self.l1_weight = open_share, ceiling, l1_weight
        self.normalizes = self.kernel_size != (1, 1)
        self.register_buffer("offset", torch.zeros((), device=device, dtype=dtype) if self.normalizes else None)
        if not self.normalizes:
            return
        self.branch_padding = _centre(pair(kernel_size), pair(stride), pair(dilation), padding)
        self.norm = nn.BatchNorm2d(out_channels, device=device, dtype=dtype)
        self.branch = nn.Conv2d(
            in_channels, out_channels, 1, stride, groups=groups, bias=False, device=device, dtype=dtype
        )
        self.branch_norm = nn.BatchNorm2d(out_channels, device=device, dtype=dtype)
        nn.init.constant_(self.branch_norm.bias, NormalDist().inv_cdf(open_share))

    @takes_images
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if not self.normalizes:
            return out
        branch = self.collaborate(x)
        self.branch_sum = branch.flatten(1).sum(1).mean() if self.training and self.l1_weight else None
        return self.norm(out) * branch

    def collaborate(self, x: Tensor) -> Tensor:
        """The cheap branch, zero where the convolution is not needed."""
        if any(self.branch_padding):
            x = F.pad(x, self.branch_padding)
        return (self.branch_norm(self.branch(x)) - self.offset).clamp(0, self.ceiling)

    def penalty(self, saliencies: object = ()) -> Tensor | None:
        branch_sum, self.branch_sum = self.branch_sum, None  # taken, as the saliencies of FBS are
        return None if branch_sum is None else self.l1_weight * branch_sum

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"branch_sum": None}

    def extra_repr(self) -> str:
        about = f"open_share={self.open_share:.4g}" if self.normalizes else "left undivided: it is 1x1"
        return f"{super().extra_repr()}, {about}"


def _centre(kernel_size: Pair, stride: Pair, dilation: Pair, padding: Size2 | str) -> list[int]:
    """What to add to the input's sides (or cut off, if negative) to leave the middle of each kernel's window."""
    around, extra = resolve_padding(padding, kernel_size, stride, dilation)
    sides: list[int] = []
    for size, spread, added, more in zip(kernel_size, dilation, around, extra, strict=True):
        reach = spread * (size - 1)
        before = added - reach // 2
        sides = [before, 2 * added + more - reach - before, *sides]  # F.pad begins with the last dimension
    return sides


def _macs(layer: LowCostCollaborativeConv2d, call: MacCall) -> tuple[float, float]:
    """The branch everywhere, the convolution where the branch is not zero."""
    if not layer.normalizes:
        return 1.0, 0
    branch = 1 / math.prod(layer.kernel_size)
    needed = float((layer.collaborate(call.x) > 0).float().mean()) if call.measured else layer.open_share
    return branch + needed, 0


LCCN = register_method(
    Method(
        "lccn",
        "LCCN",
        LowCostCollaborativeConv2d,
        {"open_share": BETWEEN, "ceiling": POSITIVE, "l1_weight": FACTOR},
        DENSE_ANYWAY,
        Knob("open_share", cheapest=0.001, dearest=0.999),
        macs=_macs,
        choice_depends_on_image=True,
        cost_is_trained=True,
        at_equal_macs={"open_share": 0.9},  # starts open, and a MAC budget closes it
    )
)
