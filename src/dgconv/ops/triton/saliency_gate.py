"""Pooling, saliency generator and gate as Triton kernels: two launches, or four in wide layers.

    p = mean of x over the pixels                      [B, C]
    hidden = (W1[h] p)+                                [B, H, D]
    saliency = (W2[h] hidden + beta[h])+               [B, H, C]   (without the last + if signed)
    gates = saliency where kept, else 0                [B, H, C]
    folded = W[o] gates[b, o % H]                      [B, C', C]  the weight of a 1x1 convolution, if there is one

A head keeps its ``keep`` channels of greatest saliency, the lowest index winning a tie and NaN ranking last; with a
threshold, the channels with ``abs(saliency) >= threshold``. The same rules as ``layers.gate``, everything in float32.

The border between kept and left out is found by its bits, four at a time from the top: of sixteen candidates, the
largest that at least ``keep`` channels reach. Eight rounds, whatever C is; sums go in a fixed order, no atomics.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from .matrix import _load_tile, _store_tile

PRECISION = tl.constexpr("tf32x3")  # as good as float32, and on tensor cores; the order of channels hangs on it
MAX_HIDDEN = 256  # D must fit one tile
ROWS = tl.constexpr(16)  # the fewest a matrix product takes
NARROW = 4096  # weights, W1 or W2 of a head, that are read once for each image


@triton.jit
def _pool_kernel(x_ptr, pooled_ptr, rows, pixels, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    total = tl.zeros([BLOCK_R, BLOCK_P], tl.float32)
    for start in range(0, pixels, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        inside = (row < rows)[:, None] & (p < pixels)[None, :]
        total += tl.load(x_ptr + row[:, None] * pixels + p[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(pooled_ptr + row, tl.sum(total, 1) / pixels, mask=row < rows)


@triton.jit
def _relu(x):
    return tl.where(x < 0, 0.0, x)  # a NaN stays one


@triton.jit
def _keep_greatest(score, channel, channels, keep):
    """True for the ``keep`` greatest of ``score``, of which the first ``channels`` count."""
    score = tl.where(score != score, -float("inf"), score)
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)  # one zero only
    bits = tl.where(bits < 0, ~bits, bits ^ -2147483648)
    key = tl.where(channel < channels, bits, 0).to(tl.uint32, bitcast=True)  # sorts as the scores do; least: no channel
    digit = tl.arange(0, 16).to(tl.uint32)
    border, unit = tl.full([], 0, tl.uint32), tl.full([], 1 << 28, tl.uint32)
    for _ in range(8):
        candidate = border + digit * unit
        reached = tl.sum((key[:, None] >= candidate[None, :]).to(tl.int32), 0)  # [16], by how many channels
        border += (tl.sum((reached >= keep).to(tl.int32), 0) - 1).to(tl.uint32) * unit
        unit = unit >> 4
    above, level = key > border, key == border
    room = keep - tl.sum(above.to(tl.int32), 0)
    return above | (level & (tl.cumsum(level.to(tl.int32), 0) <= room))


@triton.jit
def _gate_and_fold(
    score, c, head, image, keep_ptr, threshold_ptr, weight_ptr, gates_ptr, kept_ptr, folded_ptr,
    heads, channels, outputs, folded_width, BLOCK_O: tl.constexpr, GLOBAL: tl.constexpr,
):  # fmt: skip
    """Gates of one head and image, and with BLOCK_O, folded into that head's filters, so many at a time."""
    if GLOBAL:
        kept = tl.abs(score) >= tl.load(threshold_ptr)
    else:
        kept = _keep_greatest(score, c, channels, tl.load(keep_ptr).to(tl.int32))
    gates = tl.where(kept, score, 0.0)
    at = (image * heads + head) * channels + c
    tl.store(gates_ptr + at, gates, mask=c < channels)
    tl.store(kept_ptr + at, kept, mask=c < channels)
    if BLOCK_O:
        for start in range(0, outputs // heads, BLOCK_O):
            filters = start + tl.arange(0, BLOCK_O)
            o = tl.where(filters < outputs // heads, filters * heads + head, outputs)
            weight = _load_tile(weight_ptr, o, c, outputs, channels).to(tl.float32)
            folded = (weight * gates[None, :]).to(folded_ptr.dtype.element_ty)
            folded_at = (image.to(tl.int64) * outputs + o)[:, None] * folded_width + c[None, :]
            tl.store(folded_ptr + folded_at, folded, mask=(o < outputs)[:, None] & (c < folded_width)[None, :])


@triton.jit(do_not_specialize=["width"])
def _narrow_kernel(
    pooled_ptr, weight1_ptr, weight2_ptr, bias_ptr, keep_ptr, threshold_ptr, weight_ptr,
    saliency_ptr, gates_ptr, hidden_ptr, kept_ptr, folded_ptr,
    heads, channels, width, outputs, folded_width,
    BLOCK_D: tl.constexpr, ALL_C: tl.constexpr, BLOCK_O: tl.constexpr, SIGNED: tl.constexpr, GLOBAL: tl.constexpr,
):  # fmt: skip
    """All of it for one head of one image; its weights fit one tile."""
    head, image = tl.program_id(0), tl.program_id(1)
    c, d = tl.arange(0, ALL_C), tl.arange(0, BLOCK_D)
    pooled = tl.load(pooled_ptr + image * channels + c, mask=c < channels, other=0.0)
    weight1 = _load_tile(weight1_ptr + head * width * channels, d, c, width, channels)
    hidden = _relu(tl.sum(weight1 * pooled[None, :], 1))
    tl.store(hidden_ptr + (image * heads + head) * width + d, hidden, mask=d < width)
    weight2 = _load_tile(weight2_ptr + head * channels * width, c, d, channels, width)
    score = tl.sum(weight2 * hidden[None, :], 1)
    score += tl.load(bias_ptr + head * channels + c, mask=c < channels, other=0.0)
    if not SIGNED:
        score = _relu(score)
    saliency_ptr += (image * heads + head) * channels
    tl.store(saliency_ptr + c, score, mask=c < channels)
    tl.debug_barrier()  # read back: with the sum as it lies in registers, Triton 3.6 ranks wrongly on a GPU
    score = tl.load(saliency_ptr + c, mask=c < channels, other=0.0)
    _gate_and_fold(
        score, c, head, image, keep_ptr, threshold_ptr, weight_ptr, gates_ptr, kept_ptr, folded_ptr,
        heads, channels, outputs, folded_width, BLOCK_O, GLOBAL,
    )  # fmt: skip


@triton.jit(do_not_specialize=["units"])
def _hidden_kernel(
    pooled_ptr, weight1_ptr, hidden_ptr, batch, channels, units, BLOCK_U: tl.constexpr, BLOCK_C: tl.constexpr
):
    """hidden[b, u] = (sum_c W1[u, c] pooled[b, c])+ of ROWS images; the units u are those of all heads."""
    b, u = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * BLOCK_U + tl.arange(0, BLOCK_U)
    hidden = tl.zeros([ROWS, BLOCK_U], tl.float32)
    for start in range(0, channels, BLOCK_C):
        c = start + tl.arange(0, BLOCK_C)
        pooled = _load_tile(pooled_ptr, b, c, batch, channels)
        weight1 = _load_tile(weight1_ptr, u, c, units, channels)
        hidden = tl.dot(pooled, tl.trans(weight1), hidden, input_precision=PRECISION)
    _store_tile(hidden_ptr, _relu(hidden), b, u, batch, units)


@triton.jit(do_not_specialize=["width"])
def _saliency_kernel(
    hidden_ptr, weight2_ptr, bias_ptr, saliency_ptr, batch, heads, channels, width,
    BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, SIGNED: tl.constexpr,
):  # fmt: skip
    """saliency[b, h, c] = (sum_d W2[h, c, d] hidden[b, h, d] + beta[h, c])+ of ROWS images."""
    head, b = tl.program_id(2), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    c, d = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_D)
    row = b * heads + head  # of [B*H, ...]
    hidden = _load_tile(hidden_ptr, row, d, batch * heads, width)
    weight2 = _load_tile(weight2_ptr + head * channels * width, c, d, channels, width)
    saliency = tl.dot(hidden, tl.trans(weight2), input_precision=PRECISION)
    saliency += tl.load(bias_ptr + head * channels + c, mask=c < channels, other=0.0)[None, :]
    if not SIGNED:
        saliency = _relu(saliency)
    _store_tile(saliency_ptr, saliency, row, c, batch * heads, channels)


@triton.jit
def _gate_kernel(
    saliency_ptr, keep_ptr, threshold_ptr, weight_ptr, gates_ptr, kept_ptr, folded_ptr,
    heads, channels, outputs, folded_width, ALL_C: tl.constexpr, BLOCK_O: tl.constexpr, GLOBAL: tl.constexpr,
):  # fmt: skip
    """One head of one image."""
    head, image = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, ALL_C)
    score = tl.load(saliency_ptr + (image * heads + head) * channels + c, mask=c < channels, other=0.0)
    _gate_and_fold(
        score, c, head, image, keep_ptr, threshold_ptr, weight_ptr, gates_ptr, kept_ptr, folded_ptr,
        heads, channels, outputs, folded_width, BLOCK_O, GLOBAL,
    )  # fmt: skip


def _hidden_block(width: int) -> int:
    if width > MAX_HIDDEN:
        raise ValueError(f"the hidden layer may be {MAX_HIDDEN} wide at most, got {width}")
    return max(16, triton.next_power_of_2(width))


def _all_channels(channels: int) -> int:
    return max(32, triton.next_power_of_2(channels))


def _warps(channels: int) -> int:
    return 4 if channels <= 128 else 8


def pool(x: Tensor) -> Tensor:
    """Mean over the pixels in float32: ``[B, C, ...]`` (contiguous) to ``[B, C]``."""
    batch, channels = x.shape[:2]
    pixels = x.shape[2:].numel()
    pooled = torch.empty(batch, channels, device=x.device, dtype=torch.float32)
    block_p = min(triton.next_power_of_2(pixels), 1024)
    block_r = 4096 // block_p
    _pool_kernel[(triton.cdiv(batch * channels, block_r),)](
        x.contiguous(), pooled, batch * channels, pixels, block_r, block_p
    )
    return pooled


def forward(
    pooled: Tensor, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: Tensor, threshold: Tensor | None, signed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``pooled`` [B, C] to saliency [B, H, C], gates [B, H, C], hidden [B, H, D] and the mask of kept channels.

    With a ``threshold`` the gate is the global one and ``keep`` is not read. Both stay on the device.
    """
    return _forward(pooled, weight1, weight2, bias, keep, threshold, signed, weight=None, dtype=pooled.dtype)[:4]


def forward_folded(
    pooled: Tensor, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: Tensor, threshold: Tensor | None,
    signed: bool, weight: Tensor, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The same, and the gates folded into ``weight`` [C', C]: [B, C', C rounded up] in ``dtype``, zero beyond C."""
    return _forward(pooled, weight1, weight2, bias, keep, threshold, signed, weight, dtype)


def _forward(
    pooled: Tensor, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: Tensor, threshold: Tensor | None,
    signed: bool, weight: Tensor | None, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    batch, (heads, width, channels) = pooled.shape[0], weight1.shape
    saliency = pooled.new_empty(batch, heads, channels)
    gates, hidden = torch.empty_like(saliency), pooled.new_empty(batch, heads, width)
    kept = torch.empty_like(saliency, dtype=torch.bool)
    outputs = 0 if weight is None else weight.shape[0]
    folded = pooled.new_empty((batch, outputs, triton.cdiv(channels, 16) * 16), dtype=dtype)  # its rows are aligned
    all_c, block_d, warps = _all_channels(channels), _hidden_block(width), _warps(channels)
    block_o = min(triton.next_power_of_2(outputs // heads), max(1, 1024 * warps // all_c)) if outputs else 0
    pooled, weight1, weight2, bias = (tensor.contiguous() for tensor in (pooled, weight1, weight2, bias))
    limit = keep, keep if threshold is None else threshold, pooled if weight is None else weight.contiguous()
    if all_c * block_d <= NARROW:
        _narrow_kernel[(heads, batch)](
            pooled, weight1, weight2, bias, *limit, saliency, gates, hidden, kept, folded,
            heads, channels, width, outputs, folded.shape[2],
            block_d, all_c, block_o, signed, threshold is not None, num_warps=warps,
        )  # fmt: skip
    else:  # weights that should serve several images, and each a part of them
        units, blocks = heads * width, triton.cdiv(batch, ROWS.value)
        _hidden_kernel[(triton.cdiv(units, 16), blocks)](
            pooled, weight1, hidden, batch, channels, units, 16, 64, num_warps=2
        )
        _saliency_kernel[(triton.cdiv(channels, 64), blocks, heads)](
            hidden, weight2, bias, saliency, batch, heads, channels, width, 64, block_d, signed
        )
        _gate_kernel[(heads, batch)](
            saliency, *limit, gates, kept, folded, heads, channels, outputs, folded.shape[2],
            all_c, block_o, threshold is not None, num_warps=warps,
        )  # fmt: skip
    return saliency, gates, hidden, kept, folded
