"""Fully learnable group convolution (FLGC), Wang et al., CVPR 2019: which channels form a group is learned."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.geometry import Size2
from ..values import SIZE
from ._conv import full_precision
from .indexed import SplitConv2d
from .method import Knob, MacCall, Method, MethodLayer, register_method

Gradient = Literal["softmax", "argmax"]


class FullyLearnableGroupConv2d(MethodLayer, nn.Conv2d):
    r"""Every input channel and every filter scores all groups and belongs to the one it scores highest.

    .. math:: x' = (W \odot M) * x, \qquad M = \hat{T} \hat{S}^\top, \qquad
              \hat{S} = \mathrm{onehot}(\arg\max \mathrm{softmax}(S)), \; \hat{T} \text{ likewise}

    S ``[C, G]`` is ``input_scores``, T ``[C', G]`` is ``output_scores``. The arg max has no gradient; the softmax gets
    it instead (straight-through). Groups may be of unequal size, and even empty: an output whose group has no input is
    zero (or its bias). So the cost is not 1/G but :math:`\sum_g |in_g| |out_g|` of :math:`C C'`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, bias: as in ``nn.Conv2d``;
            but no bias unless asked for.
        groups: G, how many groups there are to choose from. It need not divide anything.
        gradient: what the softmax gets: ``"softmax"`` all of it, as in the paper; ``"argmax"`` only that of the winning
            group, as in a public port, whose channels scarcely ever move.
    """

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
        gradient: Gradient = "softmax",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        FLGC.check(groups=groups, gradient=gradient)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, bias=bias, device=device, dtype=dtype
        )
        self.groups, self.gradient = groups, gradient
        self.input_scores = nn.Parameter(torch.empty(in_channels, groups, device=device, dtype=dtype))
        self.output_scores = nn.Parameter(torch.empty(out_channels, groups, device=device, dtype=dtype))
        nn.init.normal_(self.input_scores)
        nn.init.normal_(self.output_scores)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.masked_weight(), self.bias, self.stride, self.padding, self.dilation)

    def masked_weight(self) -> Tensor:
        inputs, outputs = self._selection(self.input_scores), self._selection(self.output_scores)
        with full_precision(self.weight):  # for the gradient of the scores
            together = outputs @ inputs.mT  # [C', C], 1 where both are in one group
        return self.weight * together[:, :, None, None]

    def _selection(self, scores: Tensor) -> Tensor:
        """One-hot rows, exactly, whose gradient goes to the softmax."""
        soft = scores.softmax(1)
        hard = torch.zeros_like(soft).scatter(1, scores.argmax(1, keepdim=True), 1.0)
        gradient_only = soft - soft.detach()
        return hard + (gradient_only if self.gradient == "softmax" else hard * gradient_only)

    @torch.no_grad()
    def members(self) -> list[tuple[Tensor, Tensor]]:
        """The input and the output channels of each group, in order."""
        inputs, outputs = self.input_scores.argmax(1), self.output_scores.argmax(1)
        return [((inputs == g).nonzero().flatten(), (outputs == g).nonzero().flatten()) for g in range(self.groups)]

    def share(self) -> float:
        """The share of the undivided convolution's work that is left."""
        pairs = sum(len(inputs) * len(outputs) for inputs, outputs in self.members())
        return pairs / (self.in_channels * self.out_channels)

    def to_static(self) -> nn.Module:
        """A small undivided convolution a group."""
        weight = self.masked_weight().detach()
        working = [(inputs, outputs) for inputs, outputs in self.members() if len(inputs) and len(outputs)]
        if not working:  # all weights are masked; one of them gives the zeros their size
            working = [(torch.zeros(1, dtype=torch.long, device=weight.device),) * 2]
        return SplitConv2d(self, working, weight, self.bias)


def _macs(layer: FullyLearnableGroupConv2d, call: MacCall) -> tuple[float, float]:
    return layer.share(), 0


FLGC = register_method(
    Method(
        "flgc",
        "FLGC",
        FullyLearnableGroupConv2d,
        {"groups": SIZE, "gradient": None},
        "static: picks channels by index, then a convolution a group",
        Knob("groups", cheapest=64, dearest=1),
        macs=_macs,
    )
)
