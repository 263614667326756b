"""Learned group convolution (LGC), Huang et al., CondenseNet, CVPR 2018: groups choose their inputs in training."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..ops import fused
from ..ops.geometry import Size2
from ..values import FACTOR, SIZE
from ._stepwise import StepwiseLayer, steps_done
from .gate import HeadGate, keep_count
from .indexed import IndexedGroupConv2d, fill_
from .method import Knob, MacCall, Method, register_method


class LearnedGroupConv2d(StepwiseLayer, nn.Conv2d):
    r"""Starts undivided; in C - 1 condensations every group of filters drops the inputs it uses least.

    .. math:: x'_o = \sum_{j \in K_g} w_{oj} * x_j, \; o \in g, \qquad
              K_g = \mathrm{top}_{keep} \Big( \sum_{o \in g} \lVert w_{oj} \rVert_1 \Big)_j

    Condensation s is at progress s / (2 (C - 1)), so half of the training is left for the final connections. After
    the last one each group keeps R/C of the R inputs; where C does not divide R, ceil(R/C), and the drops are as
    equal as they can be. What is dropped stays dropped. Group g owns the output channels g, g+G, g+2G, ...

    The original is 1x1 only and needs C to divide R; here the norm runs over the kernel too.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, bias: as in ``nn.Conv2d``;
            but no bias unless asked for.
        groups: G, groups of filters, each with its own choice.
        condensation: C, the factor by which the inputs of each group shrink; 1 leaves the convolution undivided.
        group_lasso: weight in the loss, until the last condensation, of the sum over groups and inputs of the norm of
            a group's weights for an input, so that its filters agree. The authors: 0 on CIFAR, 1e-5 on ImageNet.
    """

    mask: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2,
        stride: Size2 = 1,
        padding: Size2 | str = 0,
        dilation: Size2 = 1,
        groups: int = 4,
        bias: bool = False,
        *,
        condensation: int = 4,
        group_lasso: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        LGC.check(groups=groups, condensation=condensation, group_lasso=group_lasso)
        if out_channels % groups:
            raise UserError(
                f"groups must divide out_channels: {groups} groups, {out_channels} output channels. "
                f"Use one of {[g for g in range(1, out_channels + 1) if out_channels % g == 0][:8]}"
            )
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, bias=bias, device=device, dtype=dtype
        )
        self.groups, self.condensation, self.group_lasso = groups, condensation, group_lasso
        self.final_keep = keep_count(in_channels, 1 - 1 / condensation)
        kept = torch.ones(groups, in_channels, dtype=torch.bool, device=device)
        self.register_buffer("mask", kept)  # [G, C], True where a group has kept an input

    def keep_at(self, progress: float) -> int:
        condensations = self.condensation - 1
        drops = self.in_channels - self.final_keep
        return self.in_channels - drops * steps_done(progress, condensations) // max(1, condensations)

    @torch.no_grad()
    def keep_only(self, keep: int) -> None:
        """Condense to ``keep`` inputs a group."""
        use = self._by_group(self.weight).abs().sum((0, 3, 4)).where(self.mask, -torch.inf)  # [G, C]
        gate = HeadGate(self.in_channels, 0, device=self.mask.device)
        gate.keep.fill_(keep)
        self.mask &= gate.mask(use)

    def forward(self, x: Tensor) -> Tensor:
        if fused.fits_pointwise(self, x):
            return fused.pointwise_conv(x, self.masked_weight())
        return F.conv2d(x, self.masked_weight(), self.bias, self.stride, self.padding, self.dilation)

    def masked_weight(self) -> Tensor:
        return (self._by_group(self.weight) * self.mask[:, :, None, None]).flatten(0, 1)

    def _by_group(self, weight: Tensor) -> Tensor:
        return weight.unflatten(0, (-1, self.groups))  # [C'/G, G, C, k, k]

    def penalty(self, saliencies: object = ()) -> Tensor | None:
        if not self.group_lasso:
            return None
        energy = self._by_group(self.masked_weight()).square().sum((0, 3, 4))  # [G, C]
        is_condensing = self.mask.sum() > self.groups * self.final_keep  # a tensor: the step may be a CUDA graph
        return self.group_lasso * is_condensing * energy.clamp(min=1e-6).sqrt().sum()

    def to_static(self) -> nn.Module:
        """Channels picked by index and a grouped convolution; a plain one while nothing was dropped."""
        weight, bias = self.weight.detach(), None if self.bias is None else self.bias.detach()
        if bool(self.mask.all()):
            plain = nn.Conv2d(
                self.in_channels, self.out_channels, self.kernel_size, self.stride, self.padding, self.dilation,  # type: ignore[arg-type]
                bias=bias is not None, device=weight.device, dtype=weight.dtype,
            )  # fmt: skip
            fill_(plain, weight, bias)
            return plain
        kept = [row.nonzero().flatten() for row in self.mask]
        blocks = [weight[group :: self.groups, inputs] for group, inputs in enumerate(kept)]
        bias = None if bias is None else torch.cat([bias[group :: self.groups] for group in range(self.groups)])
        return IndexedGroupConv2d(self, torch.cat(kept), torch.cat(blocks), bias, self.groups)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, condensation={self.condensation}"


def _macs(layer: LearnedGroupConv2d, call: MacCall) -> tuple[float, float]:
    """Counts it as it is now on images; without, as it will be when it is condensed."""
    return float(layer.mask.float().mean()) if call.measured else layer.final_keep / layer.in_channels, 0


LGC = register_method(
    Method(
        "lgc",
        "LGC",
        LearnedGroupConv2d,
        {"groups": SIZE, "condensation": SIZE, "group_lasso": FACTOR},
        "static: picks channels by index, then grouped convolutions",
        Knob("condensation", cheapest=64, dearest=1),
        macs=_macs,
    )
)
