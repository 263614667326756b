"""The first convolution of a network for ImageNet, 7x7 of stride 2 over three channels, and the max-pooling after it.

    pad         x [B, C, height, width]     to  padded [B, height + 6, .., 4], zeros around and in the fourth channel
    convolve    padded                      to  activation(conv + bias), or just conv, channels-last
    pooled      padded                      to  activation(max_pool2d(conv) + bias), 3x3 of stride 2, and its sums

Eight neighbouring pixels of four channels are 32 values in a row: one row of a window, with a weight of zero for the
eighth. So K is 7 rows of 32, read 16 bytes at a time. What is pooled never goes to memory: a program computes the three
columns that each of its pooled pixels looks at, one of them twice, and keeps the row that two pooled rows share.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import ACTIVATIONS, Geometry, _activate, _finish

CONV, POOL = Geometry(7, 2, 3), Geometry(3, 2, 1)
ROW = tl.constexpr(32)  # values of a row of a window
TAPS = tl.constexpr(7)


@dataclass(frozen=True)
class StemTile:
    """``rows`` pooled rows for a program, ``pixels`` of each; no rows: not fused, ``pixels`` of the convolution."""

    pixels: int
    outputs: int
    rows: int
    warps: int = 4
    stages: int = 3


def lay_out(weight: Tensor) -> Tensor:
    """``[C', C, 7, 7]`` to ``[7 * 32, N]``, N filled up with zeros to 16s."""
    outputs, channels = weight.shape[:2]
    filled = torch.nn.functional.pad(weight, (0, 1, 0, 0, 0, 4 - channels, 0, -outputs % 16))
    return filled.permute(2, 3, 1, 0).flatten(0, 2).contiguous()


def pad(x: Tensor, dtype: torch.dtype) -> Tensor:
    batch, channels, height, width = x.shape
    high, wide = height + 6, triton.cdiv(width + 8, 4) * 4
    padded = torch.empty(batch, high, wide, 4, device=x.device, dtype=dtype)
    block = 512
    _pad_kernel[(triton.cdiv(high * wide, block), batch)](
        x,
        padded,
        *x.stride(),
        CHANNELS=channels,
        HEIGHT=height,
        WIDTH=width,
        HIGH=high,
        WIDE=wide,
        BLOCK=block,
    )
    return padded


@triton.jit
def _pad_kernel(
    x_ptr, padded_ptr, image_stride, channel_stride, row_stride, pixel_stride, CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1).to(tl.int64)
    p, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, 4)
    y, x = p // WIDE - 3, p % WIDE - 3
    inside = ((y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH))[:, None] & (c < CHANNELS)[None, :]
    at = (y * row_stride + x * pixel_stride)[:, None] + (c * channel_stride)[None, :]
    value = tl.load(x_ptr + image * image_stride + at, mask=inside, other=0.0).to(padded_ptr.dtype.element_ty)
    out = padded_ptr + image * (HIGH * WIDE * 4) + p[:, None] * 4 + c[None, :]
    tl.store(out, value, mask=(p < HIGH * WIDE)[:, None])


def convolve(padded: Tensor, weight: Tensor, size: tuple[int, int], outputs: int, tile: StemTile) -> Tensor:
    """Of images of ``size``; ``weight`` is :func:`lay_out`'s."""
    batch, high, wide = len(padded), CONV.output(size[0]), CONV.output(size[1])
    shape = (batch, outputs, high, wide)
    y = torch.empty(shape, device=padded.device, dtype=padded.dtype, memory_format=torch.channels_last)
    grid = triton.cdiv(high * wide, tile.pixels), triton.cdiv(outputs, tile.outputs), batch
    _stem_kernel[grid](
        padded, weight, y, HIGH=padded.shape[1], PADDED=padded.shape[2], WIDE=wide, PIXELS=high * wide,
        OUTPUTS=outputs, COLUMNS=weight.shape[1],
        BLOCK_M=tile.pixels, BLOCK_N=tile.outputs, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y


@triton.jit
def _stem_kernel(
    x_ptr, weight_ptr, y_ptr, HIGH: tl.constexpr, PADDED: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tile, block, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    pixel = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = tl.minimum(pixel, PIXELS - 1)
    n, k = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, ROW)
    x_ptr += image.to(tl.int64) * (HIGH * PADDED * 4)
    x_ptrs = x_ptr + (inside // WIDE * (2 * PADDED * 4) + inside % WIDE * 8)[:, None] + k[None, :]
    weight_ptrs = weight_ptr + k[:, None] * COLUMNS + n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for down in range(TAPS):
        a = tl.load(x_ptrs + down * (PADDED * 4))
        weight = tl.load(weight_ptrs + down * (ROW * COLUMNS), mask=(n < COLUMNS)[None, :], other=0.0)
        total = tl.dot(a, weight, total)
    _finish(
        total, pixel, n, n < OUTPUTS, x_ptr, x_ptr, y_ptr, x_ptr, image, tile, PIXELS, OUTPUTS, False, False, False, 0
    )


def pooled(
    padded: Tensor, weight: Tensor, bias: Tensor | None, activation: str, size: tuple[int, int], outputs: int,
    tile: StemTile,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, conv_high, conv_wide = len(padded), CONV.output(size[0]), CONV.output(size[1])
    high, wide = POOL.output(conv_high), POOL.output(conv_wide)
    shape = (batch, outputs, high, wide)
    y = torch.empty(shape, device=padded.device, dtype=padded.dtype, memory_format=torch.channels_last)
    across, strips = triton.cdiv(wide, tile.pixels), triton.cdiv(high, tile.rows)
    sums = torch.empty(batch, across * strips, outputs, device=padded.device, dtype=torch.float32)
    _stem_pool_kernel[(across * strips, triton.cdiv(outputs, tile.outputs), batch)](
        padded, weight, bias if bias is not None else sums, y, sums, HEIGHT=padded.shape[1], PADDED=padded.shape[2],
        CONV_HIGH=conv_high, CONV_WIDE=conv_wide, HIGH=high, WIDE=wide, ROWS=tile.rows, OUTPUTS=outputs,
        COLUMNS=weight.shape[1], BIAS=bias is not None, ACTIVATION=ACTIVATIONS[activation],
        BLOCK_M=tile.pixels, BLOCK_N=tile.outputs,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y, sums


@triton.jit
def _pooled_row(
    x_ptr, weight_ptrs, row, column, is_weight, PADDED: tl.constexpr, CONV_HIGH: tl.constexpr, CONV_WIDE: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Maxima over columns ``2 * column`` and both its neighbours, of one row of the convolution; it may not exist."""
    k = tl.arange(0, ROW)
    source = x_ptr + tl.minimum(tl.maximum(row, 0), CONV_HIGH - 1) * (2 * PADDED * 4)
    middle = tl.minimum(2 * column, CONV_WIDE - 1)
    left, right = tl.maximum(middle - 1, 0), tl.minimum(middle + 1, CONV_WIDE - 1)  # again one that counts anyway
    left_ptrs = source + (left * 8)[:, None] + k[None, :]
    middle_ptrs = source + (middle * 8)[:, None] + k[None, :]
    right_ptrs = source + (right * 8)[:, None] + k[None, :]
    of_left = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    of_middle = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    of_right = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for down in range(TAPS):
        weight = tl.load(weight_ptrs + down * (ROW * COLUMNS), mask=is_weight, other=0.0)
        of_left = tl.dot(tl.load(left_ptrs + down * (PADDED * 4)), weight, of_left)
        of_middle = tl.dot(tl.load(middle_ptrs + down * (PADDED * 4)), weight, of_middle)
        of_right = tl.dot(tl.load(right_ptrs + down * (PADDED * 4)), weight, of_right)
    best = _greater(_greater(of_left, of_middle), of_right)
    return tl.where((row >= 0) & (row < CONV_HIGH), best, -float("inf"))


@triton.jit
def _greater(a, b):
    return tl.where((b > a) | (b != b), b, a)  # a NaN stays one


@triton.jit
def _stem_pool_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, sums_ptr, HEIGHT: tl.constexpr, PADDED: tl.constexpr,
    CONV_HIGH: tl.constexpr, CONV_WIDE: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Some columns of some rows of a pooled image."""
    ACROSS: tl.constexpr = (WIDE + BLOCK_M - 1) // BLOCK_M
    unit, block, image = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column = unit % ACROSS * BLOCK_M + tl.arange(0, BLOCK_M)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    x_ptr += image.to(tl.int64) * (HEIGHT * PADDED * 4)
    y_ptr += image.to(tl.int64) * (HIGH * WIDE * OUTPUTS)
    weight_ptrs = weight_ptr + tl.arange(0, ROW)[:, None] * COLUMNS + n[None, :]
    is_weight, is_output = (n < COLUMNS)[None, :], n < OUTPUTS
    bias = tl.zeros((BLOCK_N,), tl.float32)
    if BIAS:
        bias = tl.load(bias_ptr + n, mask=is_output, other=0.0)
    first = unit // ACROSS * ROWS
    carried = _pooled_row(
        x_ptr, weight_ptrs, 2 * first - 1, column, is_weight, PADDED, CONV_HIGH, CONV_WIDE, COLUMNS,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    total = tl.zeros((BLOCK_N,), tl.float32)
    for row in range(first, tl.minimum(first + ROWS, HIGH)):
        upper = _pooled_row(
            x_ptr, weight_ptrs, 2 * row, column, is_weight, PADDED, CONV_HIGH, CONV_WIDE, COLUMNS,
            BLOCK_M, BLOCK_N,
        )  # fmt: skip
        lower = _pooled_row(
            x_ptr, weight_ptrs, 2 * row + 1, column, is_weight, PADDED, CONV_HIGH, CONV_WIDE, COLUMNS,
            BLOCK_M, BLOCK_N,
        )  # fmt: skip
        best = _greater(_greater(carried, upper), lower) + bias[None, :]
        carried = lower
        result = _activate(best, ACTIVATION).to(y_ptr.dtype.element_ty)
        exists = (column < WIDE)[:, None] & is_output[None, :]
        tl.store(y_ptr + (row * WIDE + column)[:, None] * OUTPUTS + n[None, :], result, mask=exists)
        total += tl.sum(tl.where(exists, result.to(tl.float32), 0.0), 0)
    tl.store(sums_ptr + (image * tl.num_programs(0) + unit) * OUTPUTS + n, total, mask=is_output)
