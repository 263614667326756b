"""Standard group convolution (SGC), the static rival: a fixed partition of the channels, then a shuffle."""

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..ops import fused
from ..ops.geometry import Size2
from ..values import SIZE
from .method import Knob, MacCall, Method, register_method


class StandardGroupConv2d(nn.Conv2d):
    """A grouped ``nn.Conv2d`` whose outputs are shuffled, so that the next layer's groups see all of these.

    After the shuffle group g owns the output channels g, g+G, g+2G, ..., as a head of
    :class:`~dgconv.layers.DynamicGroupConv2d` does. Costs 1/G of the undivided convolution.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, bias: as in ``nn.Conv2d``;
            but no bias unless asked for.
        groups: G, how many groups there are; it must divide both channel counts.
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        SGC.check(groups=groups)
        if in_channels % groups or out_channels % groups:
            raise UserError(
                f"groups must divide both channel counts: {groups} groups, {in_channels} input and "
                f"{out_channels} output channels"
            )
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            device=device, dtype=dtype,
        )  # fmt: skip

    @property
    def undivided_inputs(self) -> int:
        """Input channels of the convolution that it stands for."""
        return self.in_channels

    def forward(self, x: Tensor) -> Tensor:
        if fused.fits_pointwise(self, x):
            return fused.pointwise_conv(x, self.weight, self.groups, interleaved=True)
        grouped = super().forward(x)
        return grouped.unflatten(-3, (self.groups, -1)).transpose(-3, -4).flatten(-4, -3)


def _macs(layer: StandardGroupConv2d, call: MacCall) -> tuple[float, float]:
    """Counts the inputs there are: a layer that picks may read some of them twice, and leave others out."""
    return layer.in_channels / (layer.groups * layer.undivided_inputs), 0


SGC = register_method(
    Method(
        "sgc",
        "SGC",
        StandardGroupConv2d,
        {"groups": SIZE},
        "static: grouped convolutions",
        Knob("groups", cheapest=64, dearest=1),
        macs=_macs,
    )
)
