"""What learned groups become when training is over: channels picked by index, then plain small convolutions."""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..errors import UserError
from ._conv import check_images, takes_images
from ._state import CountingBuffers
from .standard_group_conv import StandardGroupConv2d


class IndexedGroupConv2d(CountingBuffers, StandardGroupConv2d):
    """Picks each group's input channels, then convolves group by group and shuffles.

    Args:
        conv: whose inputs, stride, padding and dilation it has.
        index: the input channels, group after group, as many in each.
        weight: the filters, group after group, ``[C', C/G, k, k]``; ``bias`` likewise.
    """

    index: Tensor

    def __init__(self, conv: nn.Conv2d, index: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
        super().__init__(
            len(index), conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation, groups,  # type: ignore[arg-type]
            bias is not None, device=weight.device, dtype=weight.dtype,
        )  # fmt: skip
        self.picked_from = conv.in_channels
        self.register_buffer("index", index)
        fill_(self, weight, bias)

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {"index": (0, self.picked_from - 1)}

    @property
    def undivided_inputs(self) -> int:
        return self.picked_from

    def forward(self, x: Tensor) -> Tensor:
        check_images(x, self.picked_from)  # the index would pick from any that has enough
        return super().forward(x.index_select(-3, self.index))


class SplitConv2d(CountingBuffers):
    """Groups of any size, each with its own input and output channels. An output in no group is only its bias.

    Args:
        conv: whose inputs, stride, padding and dilation it has.
        groups: of each group the input channels and the output channels.
        weight: the undivided filters, ``[C', C, k, k]``.
    """

    order: Tensor

    def __init__(
        self, conv: nn.Conv2d, groups: Sequence[tuple[Tensor, Tensor]], weight: Tensor, bias: Tensor | None
    ) -> None:
        super().__init__()
        self.in_channels = conv.in_channels
        self.convs = nn.ModuleList()
        for number, (inputs, outputs) in enumerate(groups):
            part = nn.Conv2d(
                len(inputs), len(outputs), conv.kernel_size, conv.stride, conv.padding, conv.dilation,  # type: ignore[arg-type]
                bias=False, device=weight.device, dtype=weight.dtype,
            )  # fmt: skip
            fill_(part, weight[outputs][:, inputs], None)
            self.convs.append(part)
            self.register_buffer(f"inputs{number}", inputs)
        computed = torch.cat([outputs for _, outputs in groups])
        others = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
        others[computed] = False
        self.zeros = len(weight) - len(computed)
        self.register_buffer("order", torch.cat([computed, others.nonzero().flatten()]).argsort())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def ranges(self) -> dict[str, tuple[int, int]]:
        inputs = {f"inputs{number}": (0, self.in_channels - 1) for number in range(len(self.convs))}
        return inputs | {"order": (0, len(self.order) - 1)}

    @property
    def groups(self) -> list[tuple[Tensor, nn.Conv2d]]:
        """The input channels of each group, and its convolution."""
        convs = cast(Iterable[nn.Conv2d], self.convs)
        return [(self.get_buffer(f"inputs{number}"), conv) for number, conv in enumerate(convs)]

    @takes_images
    def forward(self, x: Tensor) -> Tensor:
        parts = [conv(x.index_select(-3, inputs)) for inputs, conv in self.groups]
        if self.zeros:
            shape = (*parts[0].shape[:-3], self.zeros, *parts[0].shape[-2:])
            parts.append(parts[0].new_zeros(shape))
        out = torch.cat(parts, -3).index_select(-3, self.order)
        return out if self.bias is None else out + self.bias[:, None, None].to(out.dtype)


class IndexedLinear(CountingBuffers, nn.Linear):
    """``nn.Linear`` on some of the features only."""

    index: Tensor

    def __init__(self, linear: nn.Linear, index: Tensor) -> None:
        weight = linear.weight
        super().__init__(
            len(index), linear.out_features, linear.bias is not None, device=weight.device, dtype=weight.dtype
        )
        self.picked_from = linear.in_features
        self.register_buffer("index", index)
        fill_(self, weight[:, index], linear.bias)

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {"index": (0, self.picked_from - 1)}

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor) and x.shape[-1] != self.picked_from:
            raise UserError(f"expected an input [..., {self.picked_from}], got {list(x.shape)}")
        return super().forward(x.index_select(-1, self.index))


@torch.no_grad()
def fill_(layer: nn.Conv2d | nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    """Copy weights into a layer that was made for their shape."""
    layer.weight.copy_(weight)
    if layer.bias is not None and bias is not None:
        layer.bias.copy_(bias)
