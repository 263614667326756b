"""The saliency generator: a score for every input channel, per image and head (the paper's equation 5)."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..ops import tile_training
from ..ops.transforms import has_values
from ._conv import full_precision

HALVE_BELOW = 80  # the authors' code halves the squeeze of narrow layers
CALM = 0.1  # of W2's start, at which saliencies stay near 1

_OVERFLOW_PASSES: ContextVar[bool] = ContextVar("overflow passes", default=False)


@contextmanager
def passing_overflow() -> Iterator[None]:
    """Images that overflow are computed to their end, as on a GPU always; they change nothing about the others.

    For evaluations of a network under training: in its first epochs, while its batch norms have seen little, single
    images do. A loss over them is no number.
    """
    token = _OVERFLOW_PASSES.set(True)
    try:
        yield
    finally:
        _OVERFLOW_PASSES.reset(token)


def hidden_width(channels: int, squeeze: int, halve_squeeze: bool = True) -> int:
    """Width C/d of the generator's hidden layer, at least 1.

    The paper calls d constant and never gives it. The authors' code has d = 16, halved to 8 where C < 80
    (``halve_squeeze``), which is what gives their reported MACs.
    """
    if not isinstance(squeeze, int) or squeeze < 1:
        raise UserError(f"squeeze must be a whole number, at least 1, got {squeeze!r}")
    if halve_squeeze and channels < HALVE_BELOW:
        squeeze = max(1, squeeze // 2)
    return max(1, channels // squeeze)


class SaliencyGenerator(nn.Module):
    """Scores ``g = (W2 (W1 p(x))+ + beta)+`` for all heads at once, p being global average pooling.

    In the precision of its parameters, under autocast too: scores rounded to bfloat16 tie by the dozen, and a tie
    is decided by the channel's index instead of by the image.

    Args:
        channels: C, the input channels to be scored.
        heads: H, each with its own W1, W2 and beta.
        squeeze, halve_squeeze: see :func:`hidden_width`.
        signed: leave out the last ReLU, as the global gate needs.

    Shape: ``[B, C, height, width]`` to ``[B, H, C]``.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        squeeze: int = 16,
        *,
        halve_squeeze: bool = True,
        signed: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.heads, self.signed = channels, heads, signed
        self.hidden = hidden_width(channels, squeeze, halve_squeeze)
        self.weight1 = nn.Parameter(torch.empty(heads, self.hidden, channels, device=device, dtype=dtype))
        self.weight2 = nn.Parameter(torch.empty(heads, channels, self.hidden, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(heads, channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Kaiming-normal for both maps, head by head, and beta = 1."""
        nn.init.normal_(self.weight1, std=math.sqrt(2 / self.channels))
        nn.init.normal_(self.weight2, std=math.sqrt(2 / self.hidden))
        nn.init.ones_(self.bias)

    @torch.no_grad()
    def calm(self) -> None:
        """Draws the saliencies towards 1. They still differ, at random: every channel has the same chance."""
        self.weight2.mul_(CALM)

    def reset_to_ones(self) -> None:
        """Every saliency exactly 1, for any image: where a converted, pre-trained layer starts."""
        nn.init.zeros_(self.weight2)
        nn.init.ones_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        with full_precision(x):
            return self._score(self._pool(x))

    def _score(self, pooled: Tensor) -> Tensor:
        hidden = F.relu(F.linear(pooled, self.weight1.flatten(0, 1)))  # [B, H*C/d]
        hidden = hidden.unflatten(1, (self.heads, self.hidden)).transpose(0, 1)  # [H, B, C/d]
        saliency = torch.baddbmm(self.bias[:, None], hidden, self.weight2.mT)  # [H, B, C]
        return (saliency if self.signed else F.relu(saliency)).transpose(0, 1)  # [B, H, C]

    def _pool(self, x: Tensor) -> Tensor:
        pooled = _means(x).to(self.bias.dtype)
        if _can_look(pooled) and not pooled.isfinite().all():
            if not x.numel():  # the mean of nothing is NaN
                raise UserError(f"the images have no pixels: got an input {list(x.shape)}")
            images = (~pooled.isfinite()).any(1).nonzero().flatten().tolist()
            raise UserError(
                f"the input holds NaN or infinite values in image {', '.join(map(str, images[:8]))} of the "
                f"batch ({len(images)} in all); every value must be finite. Check the data and the learning rate; "
                "a network that was never trained overflows in eval mode, its batch norms having no statistics yet. "
                "In its first epochs single images may: start from `saliency_start` calm or ones, and evaluate it with "
                "dgconv.train.evaluate, or within dgconv.layers.passing_overflow()"
            )
        return pooled

    def extra_repr(self) -> str:
        signed = ", signed=True" if self.signed else ""
        return f"channels={self.channels}, heads={self.heads}, hidden={self.hidden}{signed}"


class _PlaneMeans(torch.autograd.Function):
    """The mean of each plane, whose gradient is a view of one number a plane: torch would write it out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.shape, ctx.dtype = x.shape, x.dtype
        if x.dtype == torch.bfloat16 and dtype == torch.float32 and x.numel() and tile_training.is_there():
            return tile_training.means(x)
        return x.mean((2, 3), dtype=dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        each = (grad / (ctx.shape[2] * ctx.shape[3])).to(ctx.dtype)
        return each[:, :, None, None].expand(ctx.shape), None


def _means(x: Tensor) -> Tensor:
    dtype = torch.promote_types(x.dtype, torch.float32)
    if x.requires_grad and torch.is_grad_enabled() and has_values(x):
        return cast(Tensor, _PlaneMeans.apply(x, dtype))
    return x.mean((2, 3), dtype=dtype)


def _can_look(values: Tensor) -> bool:
    """Looking at values is free on a CPU; it would stall a GPU, and a graph under capture or a vmap has none."""
    return has_values(values) and not _OVERFLOW_PASSES.get()
