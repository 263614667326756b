"""Conv2d's arguments, as our layers take them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from ..ops.geometry import Pair, Size2, same_padding, whole_pair


def resolve_padding(padding: Size2 | str, kernel_size: Pair, stride: Pair, dilation: Pair) -> tuple[Pair, Pair]:
    """Padding on all sides, and what ``"same"`` adds at the bottom and right of an even kernel."""
    if not isinstance(padding, str):
        return whole_pair("padding", padding, 0), (0, 0)
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding != "same":
        raise UserError(f"padding must be a number, a pair, 'same' or 'valid', got {padding!r}")
    if stride != (1, 1):
        raise UserError(f"padding='same' needs stride 1, got {stride}")
    total = [d * (k - 1) for d, k in zip(dilation, kernel_size, strict=True)]
    return (total[0] // 2, total[1] // 2), (total[0] % 2, total[1] % 2)


def pad_images(x: Tensor, extra: Pair, same: bool, kernel_size: Pair, stride: Pair, dilation: Pair) -> Tensor:
    """Zeros around images where a convolution cannot add them: some more at the bottom and right, or by the rule of
    "same" on all sides."""
    top, left = 0, 0
    if same:
        (top, left), extra = same_padding((x.shape[-2], x.shape[-1]), kernel_size, stride, dilation)
    return F.pad(x, (left, left + extra[1], top, top + extra[0])) if any((top, left, *extra)) else x


def check_images(x: Tensor, channels: int) -> None:
    """Refuse an input that is neither a batch of images nor one image without a batch."""
    if not isinstance(x, Tensor):  # torch.fx's stand-in for one, of no shape yet
        return
    if x.layout is not torch.strided or x.is_quantized or x.is_nested:
        kind = "quantized" if x.is_quantized else "nested" if x.is_nested else str(x.layout)
        raise UserError(f"expected a dense tensor of numbers, got a {kind} one; call it with x.to_dense()")
    if x.dim() not in (3, 4) or x.shape[-3] != channels:
        raise UserError(f"expected an input [batch, {channels}, height, width] (or without batch), got {list(x.shape)}")


def takes_images(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A layer's forward for ``[batch, C, height, width]`` made to take one image without a batch, as nn.Conv2d does."""

    @wraps(forward)
    def checked(self: Any, x: Tensor, *more: Any) -> Tensor:
        check_images(x, self.in_channels)
        is_alone = isinstance(x, Tensor) and x.dim() == 3
        return forward(self, x[None], *more)[0] if is_alone else forward(self, x, *more)

    return checked


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """No autocast where x is; the meta device has none to turn off."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
