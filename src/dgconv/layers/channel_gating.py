"""Channel gating (CGNet), Hua et al., NeurIPS 2019: some inputs decide where the others are worth looking at."""

from statistics import NormalDist
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..ops.geometry import Size2
from ..values import BETWEEN, FACTOR, NUMBER, POSITIVE
from ._conv import takes_images
from .gate import keep_count
from .method import DENSE_ANYWAY, Knob, MacCall, Method, MethodLayer, register_method

Base = Literal["first", "blocks"]


class ChannelGatingConv2d(MethodLayer, nn.Conv2d):
    r"""A base path over few inputs gives a first result; only where that is large are the other inputs added.

    .. math:: x' = y_p + d \cdot y_r, \qquad d = \mathbb{1}[\sigma(\alpha (\mathrm{norm}(y_p) - \Delta)) > \tfrac12]

    y_p is the convolution of the base path's inputs, y_r that of the others (so y_p + y_r is the plain convolution),
    norm a batch norm without weight and bias, Delta a learned threshold for every output channel. d decides for each
    output pixel. In the backward pass the step is the identity, so that the gradient sees the sigmoid.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, bias: as in ``nn.Conv2d``;
            but no bias unless asked for.
        groups: 1; the base path may be grouped instead.
        base_share: 1/p, the share of the inputs in the base path.
        base: ``"first"``: it is the first input channels. ``"blocks"``: p groups, each output seeing its own 1/p.
        target: T, where the thresholds are drawn to; the higher, the less is computed.
        target_weight: weight of the squared distance of all thresholds from their target in the loss.
        start: where the thresholds start.
        slope: alpha, the slope of the sigmoid that gradients see.
    """

    offset: Tensor
    """Added to all thresholds, and not learned: a MAC budget moves it, for all layers alike."""

    undecayed = ("threshold",)  # as its authors have it; decayed, it would settle below its target
    cost_depends_on_image = True
    budget_advice = ("a smaller `base_share`", "a higher `target`")

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
        base_share: float = 0.25,
        base: Base = "first",
        target: float = 1.0,
        target_weight: float = 1e-4,
        start: float = 0.0,
        slope: float = 2.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if groups != 1:
            raise UserError(f"channel gating divides an undivided convolution, got groups={groups}. Leave it out")
        CGNET.check(
            base_share=base_share, base=base, target=target, target_weight=target_weight, start=start, slope=slope
        )
        self._check_channels(in_channels, out_channels, base_share, base)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, bias=bias, device=device, dtype=dtype
        )
        self.base_share, self.base, self.slope = base_share, base, slope
        self.target, self.target_weight = target, target_weight
        self.blocks = round(1 / base_share) if base == "blocks" else 1
        self.base_inputs = keep_count(in_channels, 1 - base_share)  # that an output's base path sees
        self.norm = nn.BatchNorm2d(out_channels, affine=False, device=device, dtype=dtype)
        self.threshold = nn.Parameter(torch.full((out_channels,), float(start), device=device, dtype=dtype))
        self.register_buffer("offset", torch.zeros((), device=device, dtype=dtype))

    @staticmethod
    def _check_channels(in_channels: int, out_channels: int, share: float, base: Base) -> None:
        if base == "first" and keep_count(in_channels, 1 - share) == in_channels:
            raise UserError(f"a base path of {share:g} of {in_channels} input channels leaves none; use more channels")
        blocks = round(1 / share)
        if base == "blocks" and (abs(blocks * share - 1) > 1e-6 or in_channels % blocks or out_channels % blocks):
            both = [p for p in range(2, in_channels + 1) if in_channels % p == out_channels % p == 0]
            raise UserError(
                f"base='blocks' needs base_share = 1/p, p dividing both channel counts: got {share:g} for "
                f"{in_channels} input and {out_channels} output channels. These divide both: {both[:8] or 'none'}"
            )

    @takes_images
    def forward(self, x: Tensor) -> Tensor:
        base = self.base_path(x)
        return base + self.gate(base) * self._other_path(x)

    def gate(self, base: Tensor) -> Tensor:
        """1 where a pixel of the base path opens, 0 where not, exactly; its gradient is the sigmoid's."""
        above = self.norm(base) - (self.threshold + self.offset)[:, None, None]
        opens = (above > 0).to(base.dtype)
        if not torch.is_grad_enabled():
            return opens
        soft = torch.sigmoid(self.slope * above).to(base.dtype)
        return opens + (soft - soft.detach())

    def base_path(self, x: Tensor) -> Tensor:
        if self.base == "first":
            return self._convolve(x[:, : self.base_inputs], self.weight[:, : self.base_inputs], self.bias)
        own = self._in_blocks(self.weight).diagonal(dim1=0, dim2=2).movedim(-1, 0).flatten(0, 1)  # [C', C/p, k, k]
        return self._convolve(x, own, self.bias, self.blocks)

    def _other_path(self, x: Tensor) -> Tensor:
        if self.base == "first":
            return self._convolve(x[:, self.base_inputs :], self.weight[:, self.base_inputs :])
        others = 1 - torch.eye(self.blocks, device=x.device, dtype=self.weight.dtype)
        weight = self._in_blocks(self.weight) * others[:, None, :, None, None, None]
        return self._convolve(x, weight.flatten(2, 3).flatten(0, 1))

    def _in_blocks(self, weight: Tensor) -> Tensor:
        return weight.unflatten(1, (self.blocks, -1)).unflatten(0, (self.blocks, -1))  # [p, C'/p, p, C/p, k, k]

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1) -> Tensor:
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, groups)

    def penalty(self, saliencies: object = ()) -> Tensor | None:
        return self.target_weight * (self.threshold - self.target).square().sum() if self.target_weight else None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, base_share={self.base_share:.4g}, base={self.base!r}, target={self.target:g}"


def _macs(layer: ChannelGatingConv2d, call: MacCall) -> tuple[float, float]:
    """The base path everywhere, the other inputs where it opens: a normal distribution's part above the target."""
    base = layer.base_inputs / layer.in_channels
    nominal = 1 - NormalDist().cdf(layer.target)
    opened = float(layer.gate(layer.base_path(call.x)).mean()) if call.measured else nominal
    return base + (1 - base) * opened, 0


def _in_comparisons(budget: float) -> dict[str, Any]:
    return {"base_share": min(0.25, budget / 2)}


CGNET = register_method(
    Method(
        "cgnet",
        "CGNet",
        ChannelGatingConv2d,
        {
            "base_share": BETWEEN, "base": None, "target": NUMBER, "target_weight": FACTOR, "start": NUMBER,
            "slope": POSITIVE,
        },
        DENSE_ANYWAY,
        Knob("target", cheapest=4.0, dearest=-4.0),
        macs=_macs,
        choice_depends_on_image=True,
        cost_is_trained=True,
        in_comparisons=_in_comparisons,
    )
)  # fmt: skip
