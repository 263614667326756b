"""Convolutions with a forward of their own that only pads and convolves: how they pad, found by trying.

Ports of TensorFlow's networks have them, under many names: with zeros that are the same for every image, or by the rule
of "same", which goes by its size.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops.geometry import Pair
from ._conv import pad_images
from .swap import swap_

METHODS = ("forward", "_conv_forward", "__call__")
MOST_PADDING = 64  # that is looked for, both sides together
TOLERANCE = 1e-4  # of the greatest result


class OwnPadding(NamedTuple):
    """As our layers have it: on all sides, more at the bottom and right, or by the rule of "same"."""

    padding: Pair
    extra_padding: Pair = (0, 0)
    same: bool = False


class PaddedConv2d(nn.Conv2d):
    """A convolution that takes the place of one with a forward of its own, with its parameters."""

    def __init__(self, conv: nn.Conv2d, own: OwnPadding) -> None:
        super().__init__(
            conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, own.padding, conv.dilation,  # type: ignore[arg-type]
            conv.groups, bias=False, device="meta",
        )  # fmt: skip
        self.weight, self.bias = conv.weight, conv.bias
        self.extra_padding, self.same = own.extra_padding, own.same
        self.train(conv.training)

    def forward(self, x: Tensor) -> Tensor:
        x = pad_images(x, self.extra_padding, self.same, self.kernel_size, self.stride, self.dilation)  # type: ignore[arg-type]
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def has_own_forward(conv: nn.Conv2d) -> bool:
    """Whether it has a forward of its own, in its class, as timm's Conv2dSame, or put on the object."""
    return any(getattr(type(conv), name) is not getattr(nn.Conv2d, name) for name in METHODS) or any(
        name in vars(conv) for name in METHODS
    )


def put_plain_(model: nn.Module, is_known: Callable[[nn.Module], bool]) -> nn.Module:
    """Every convolution that only pads by itself becomes one that says how; returns the model, which may be one."""
    layers: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if not isinstance(module, nn.Conv2d) or is_known(module) or not has_own_forward(module):
            continue
        has_hooks = bool(module._forward_hooks or module._forward_pre_hooks)
        if not has_hooks and (own := own_padding(module)):
            layers[module] = PaddedConv2d(module, own)
    swap_(model, layers)
    return layers.get(model, model)


def own_padding(conv: nn.Conv2d) -> OwnPadding | None:
    """How a convolution pads whose forward is its own; None where it does more than that, or something else.

    Images of several sizes tell: how large results are, and then which padding gives them.
    """
    weight = conv.weight
    is_plain = type(weight) is nn.Parameter and weight.dtype in (torch.float32, torch.float64) and not weight.is_meta
    if (
        not is_plain
        or conv.padding_mode != "zeros"
        or next(conv.buffers(), None) is not None
        or not bool(weight.detach().any())
    ):
        return None
    mode = conv.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            tried = [(x, conv.train(training)(x)) for training in (True, False) for x in _images(conv)]
    except Exception:  # of any kind: it is the user's code
        return None
    finally:
        conv.train(mode)
    if not all(isinstance(y, Tensor) and y.dim() == 4 for _, y in tried):
        return None
    return next((own for own in _candidates(conv, tried) if _explains(conv, own, tried)), None)


def _images(conv: nn.Conv2d) -> Iterator[Tensor]:
    """Of as many sizes as tell one padding from another."""
    stride, reach = max(conv.stride), max(d * (k - 1) + 1 for d, k in zip(conv.dilation, conv.kernel_size, strict=True))
    generator = torch.Generator().manual_seed(0)
    for more in range(max(stride, 2)):
        x = torch.randn(1, conv.in_channels, reach + stride + more, reach + 2 * stride + more, generator=generator)
        yield x.to(conv.weight)


def _candidates(conv: nn.Conv2d, tried: list[tuple[Tensor, Tensor]]) -> Iterator[OwnPadding]:
    totals = []
    for axis in range(2):
        reach, stride = conv.dilation[axis] * (conv.kernel_size[axis] - 1) + 1, conv.stride[axis]
        sizes = [(x.shape[2 + axis], y.shape[2 + axis]) for x, y in tried]
        fitting = (
            total
            for total in range(MOST_PADDING)
            if all(size + total >= reach and (size + total - reach) // stride + 1 == result for size, result in sizes)
        )
        totals.append(list(fitting))
    for down, right in product(*totals):
        for top, left in product(range(down // 2, -1, -1), range(right // 2, -1, -1)):
            yield OwnPadding((top, left), (down - 2 * top, right - 2 * left))
    yield OwnPadding((0, 0), same=True)


def _explains(conv: nn.Conv2d, own: OwnPadding, tried: list[tuple[Tensor, Tensor]]) -> bool:
    plain = PaddedConv2d(conv, own)
    for x, y in tried:
        with torch.no_grad():
            result = plain(x)
        if result.shape != y.shape or float((result - y).abs().max()) > TOLERANCE * (1e-30 + float(result.abs().max())):
            return False
    return True
