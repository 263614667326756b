"""Sums over pixels and max-pooling, of channels-last planes.

    sums        x [B, P, C]     to  Σ x [B, T, C], which a gate asks for
    max_pool    x               to  activation(max-pooling(x) + bias) and its sums

Sums are of T tiles each, added by the reader: in a fixed order, no atomics.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import ACTIVATIONS, Geometry, Norm, _activate

FEW = 528  # programs that leave processors idle; smaller ones are more


def sums(x: Tensor, norm: Norm | None = None) -> Tensor:
    """Sums over pixels, [B, T, C] float32, of x [B, C, height, width], channels-last."""
    batch, channels, height, width = x.shape
    pixels, block_c = height * width, min(128, max(16, triton.next_power_of_2(channels)))
    block_p = 4096 // block_c
    tiles = min(16, triton.cdiv(pixels, block_p))
    rounds = triton.cdiv(pixels, block_p * tiles)
    out = torch.empty(batch, tiles, channels, device=x.device, dtype=torch.float32)
    _sums_kernel[(tiles, triton.cdiv(channels, block_c), batch)](
        x, *norm_arguments(norm, x), out, pixels, tiles, rounds, channels,
        NORM=kind_of(norm), BLOCK_P=block_p, BLOCK_C=block_c,
    )  # fmt: skip
    return out


def norm_arguments(norm: Norm | None, other: Tensor) -> tuple[Tensor, Tensor]:
    return (norm.scale, norm.shift) if norm else (other, other)


def kind_of(norm: Norm | None) -> int:
    return -1 if norm is None else ACTIVATIONS[norm.activation]


@triton.jit
def _normalize(x, scale_ptr, shift_ptr, c, inside, NORM: tl.constexpr):
    if NORM >= 0:
        scale = tl.load(scale_ptr + c, mask=inside, other=0.0)
        x = _activate(x * scale[None, :] + tl.load(shift_ptr + c, mask=inside, other=0.0)[None, :], NORM)
    return x


@triton.jit(do_not_specialize=["pixels", "tiles", "rounds"])
def _sums_kernel(
    x_ptr, scale_ptr, shift_ptr, sums_ptr, pixels, tiles, rounds, channels,
    NORM: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    tile, image = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    x_ptr += image.to(tl.int64) * pixels * channels
    total = tl.zeros([BLOCK_P, BLOCK_C], tl.float32)
    for step in range(rounds):
        p = (tile * rounds + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        inside = (p < pixels)[:, None] & (c < channels)[None, :]
        x = tl.load(x_ptr + p[:, None] * channels + c[None, :], mask=inside, other=0.0).to(tl.float32)
        x = _normalize(x, scale_ptr, shift_ptr, c, c < channels, NORM)
        total += tl.where(inside, x, 0.0)
    tl.store(sums_ptr + (image * tiles + tile) * channels + c, tl.sum(total, 0), mask=c < channels)


def max_pool(x: Tensor, bias: Tensor | None, activation: str, window: Geometry) -> tuple[Tensor, Tensor]:
    """``activation(max_pool2d(x) + bias)``, channels-last, and its sums."""
    batch, channels, height, width = x.shape
    high, wide = window.output(height), window.output(width)
    y = torch.empty((batch, channels, high, wide), device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
    block_c = min(64, max(16, triton.next_power_of_2(channels)))
    columns = min(8, triton.next_power_of_2(wide))
    rows = 4 if batch * triton.cdiv(high, 8) * triton.cdiv(wide, columns) < FEW else 8
    across = triton.cdiv(wide, columns)
    tiles = across * triton.cdiv(high, rows)
    out = torch.empty(batch, tiles, channels, device=x.device, dtype=torch.float32)
    _max_pool_kernel[(tiles, triton.cdiv(channels, block_c), batch)](
        x, bias if bias is not None else x, y, out, CHANNELS=channels, HEIGHT=height, WIDTH=width, HIGH=high, WIDE=wide,
        BIAS=bias is not None, ACTIVATION=ACTIVATIONS[activation], KERNEL=window.kernel, STRIDE=window.stride,
        PADDING=window.padding, ROWS=rows, COLUMNS=columns, ACROSS=across, BLOCK_C=block_c,
    )  # fmt: skip
    return y, out


@triton.jit
def _max_pool_kernel(
    x_ptr, bias_ptr, y_ptr, sums_ptr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A square of pixels, whose windows overlap: the first cache has what several of them read."""
    tile, image = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.arange(0, ROWS * COLUMNS)
    row, column = tile // ACROSS * ROWS + p // COLUMNS, tile % ACROSS * COLUMNS + p % COLUMNS
    is_pixel, is_channel = (row < HIGH) & (column < WIDE), c < CHANNELS
    exists = is_pixel[:, None] & is_channel[None, :]
    x_ptr += image.to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
    y_ptr += image.to(tl.int64) * (HIGH * WIDE * CHANNELS)
    top, left = row * STRIDE - PADDING, column * STRIDE - PADDING
    x_ptrs = x_ptr + ((top * WIDTH + left) * CHANNELS)[:, None] + c[None, :]
    best = tl.full([ROWS * COLUMNS, BLOCK_C], -float("inf"), tl.float32)
    for tap in tl.static_range(KERNEL * KERNEL):
        y, x = top + tap // KERNEL, left + tap % KERNEL
        there = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
        at = x_ptrs + (tap // KERNEL * WIDTH + tap % KERNEL) * CHANNELS
        value = tl.load(at, mask=exists & there[:, None], other=-float("inf")).to(tl.float32)
        best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    if BIAS:
        best += tl.load(bias_ptr + c, mask=is_channel, other=0.0)[None, :]
    result = _activate(best, ACTIVATION).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + ((row * WIDE + column) * CHANNELS)[:, None] + c[None, :], result, mask=exists)
    part = tl.sum(tl.where(exists, result.to(tl.float32), 0.0), 0)
    tl.store(sums_ptr + (image * tl.num_programs(0) + tile) * CHANNELS + c, part, mask=is_channel)
