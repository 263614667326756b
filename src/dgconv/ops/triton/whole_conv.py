"""Dynamic group convolution over all channels, each image with weights of its own, zero where a head keeps nothing.

    fold        weight [taps, C, N], gates [B, H, C]    to  folded [B, taps, C, N]
    convolve    x [B, P, C] and either of them          to  y [B, P', N] and its sums

It multiplies as often as a dense convolution, but reads its input as that does, contiguously: where channels are few
and pixels many, memory is what takes the time, and gathering costs more than the multiplications that it saves.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tiles import ACTIVATIONS, Geometry, Tile, _finish, _is_last, _sum_of_parts, make_results


def lay_out(weight: Tensor, order: Tensor, own: Tensor) -> Tensor:
    """``[C', C, k, k]`` to ``[k * k, C, N]``, inputs and outputs in their order in memory, N filled up to 16s."""
    parts = weight[own][:, order].flatten(2).permute(2, 1, 0)
    return torch.nn.functional.pad(parts, (0, -parts.shape[-1] % 16)).contiguous()


def fold(weight: Tensor, every: Tensor, by_head: bool, outputs: int) -> Tensor:
    """The gates in the weights. ``outputs`` are those of a head."""
    (batch, heads, channels), (taps, _, row) = every.shape, weight.shape
    folded = torch.empty(batch, taps, channels, row, device=weight.device, dtype=weight.dtype)
    block_n = min(128, triton.next_power_of_2(row))
    block_k = 4096 // block_n
    grid = (triton.cdiv(taps * channels, block_k), triton.cdiv(row, block_n), batch)
    _fold_kernel[grid](
        weight, every, folded, channels, taps * channels,
        HEADS=heads, OUTPUTS=outputs, ROW=row, BY_HEAD=by_head, BLOCK_K=block_k, BLOCK_N=block_n,
    )  # fmt: skip
    return folded


@triton.jit
def _head_of(n, HEADS: tl.constexpr, OUTPUTS: tl.constexpr, BY_HEAD: tl.constexpr):
    return tl.minimum(n // OUTPUTS, HEADS - 1) if BY_HEAD else n % HEADS


@triton.jit
def _fold_kernel(
    weight_ptr, every_ptr, folded_ptr, channels, rows, HEADS: tl.constexpr, OUTPUTS: tl.constexpr, ROW: tl.constexpr,
    BY_HEAD: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(2)
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (k < rows)[:, None] & (n < ROW)[None, :]
    at = k[:, None] * ROW + n[None, :]
    head = _head_of(n, HEADS, OUTPUTS, BY_HEAD)
    gate = tl.load(
        every_ptr + (image * HEADS + head)[None, :] * channels + (k % channels)[:, None], mask=inside, other=0.0
    )
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    folded = (weight.to(tl.float32) * gate).to(weight.dtype)
    tl.store(folded_ptr + image.to(tl.int64) * (rows * ROW) + at, folded, mask=inside)


def convolve(
    x: Tensor, every: Tensor, arrivals: Tensor, weight: Tensor, bias: Tensor | None, outputs: int, geometry: Geometry,
    tile: Tile, *, residual: Tensor | None, activation: str, by_head: bool, with_sums: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """``activation(conv(x) + bias + residual)``, channels-last, and its sums. ``weight`` is :func:`lay_out`'s."""
    (batch, channels, height, width), heads = x.shape, every.shape[1]
    y, sums = make_results(x, heads * outputs, geometry, tile, with_sums)
    pixels, wide = y.shape[2:].numel(), y.shape[3]
    tiles, blocks = triton.cdiv(pixels, tile.pixels), triton.cdiv(heads * outputs, tile.outputs)
    parts = every
    if tile.split > 1:
        parts = every.new_empty(batch * tiles * blocks * tile.split, tile.pixels, tile.outputs)
    folded = tile.way == "folded"
    b = fold(weight, every, by_head, outputs) if folded else weight
    _whole_kernel[(tiles, blocks * tile.split, batch)](
        x, b, every, bias if bias is not None else every, residual if residual is not None else y, y,
        sums if sums is not None else every, parts, arrivals,
        CHANNELS=channels, HEIGHT=height, WIDTH=width, WIDE=wide, PIXELS=pixels, HEADS=heads, OUTPUTS=outputs,
        ROW=weight.shape[2], FOLDED=folded, BIAS=bias is not None, RESIDUAL=residual is not None, BY_HEAD=by_head,
        SUMS=with_sums, ACTIVATION=ACTIVATIONS[activation], **geometry.options, **tile.options,
    )  # fmt: skip
    return y, sums


@triton.jit
def _whole_kernel(
    x_ptr, weight_ptr, every_ptr, bias_ptr, residual_ptr, y_ptr, sums_ptr, parts_ptr, arrivals_ptr,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, ROW: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, FOLDED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, BY_HEAD: tl.constexpr,
    SUMS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Pixels of one image and outputs of any heads; with SPLIT, a part of the taps and channels."""
    TAPS: tl.constexpr = KERNEL * KERNEL
    TOTAL: tl.constexpr = HEADS * OUTPUTS
    STEPS: tl.constexpr = TAPS * ((CHANNELS + BLOCK_K - 1) // BLOCK_K)
    EACH: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    tile, image = tl.program_id(0), tl.program_id(2)
    block, part = tl.program_id(1) // SPLIT, tl.program_id(1) % SPLIT
    pixel = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = tl.minimum(pixel, PIXELS - 1)  # those beyond compute the last one again, and nobody stores it
    top, left = inside // WIDE * STRIDE - PADDING, inside % WIDE * STRIDE - PADDING
    n, k = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    x_ptr += image.to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
    x_ptrs = x_ptr + (top * WIDTH + left)[:, None] * CHANNELS + k[None, :]
    if FOLDED:
        weight_ptr += image.to(tl.int64) * (TAPS * CHANNELS * ROW)
    weight_ptrs = weight_ptr + k[:, None] * ROW + n[None, :]
    every_ptrs = every_ptr + (image * HEADS + _head_of(n, HEADS, OUTPUTS, BY_HEAD))[None, :] * CHANNELS + k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(part * EACH, tl.minimum(part * EACH + EACH, STEPS)):
        tap, first = step % TAPS, step // TAPS * BLOCK_K
        down, right = tap // KERNEL, tap % KERNEL
        y, x = top + down, left + right
        there = ((y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH))[:, None]
        is_weight = (n < ROW)[None, :]
        if CHANNELS % BLOCK_K != 0:
            there = there & (first + k < CHANNELS)[None, :]
            is_weight = is_weight & (first + k < CHANNELS)[:, None]
        a = tl.load(x_ptrs + ((down * WIDTH + right) * CHANNELS + first), mask=there, other=0.0)
        at = (tap * CHANNELS + first) * ROW
        if CHANNELS % BLOCK_K == 0 and ROW % BLOCK_N == 0:
            weight = tl.load(weight_ptrs + at)
        else:
            weight = tl.load(weight_ptrs + at, mask=is_weight, other=0.0)
        if not FOLDED:
            if CHANNELS % BLOCK_K == 0:
                gate = tl.load(every_ptrs + first)
            else:
                gate = tl.load(every_ptrs + first, mask=(first + k < CHANNELS)[:, None], other=0.0)
            weight = (weight.to(tl.float32) * gate).to(a.dtype)
        total = tl.dot(a, weight, total)
    if SPLIT > 1:
        unit = (image * tl.num_programs(0) + tile) * (tl.num_programs(1) // SPLIT) + block
        if not _is_last(total, parts_ptr, arrivals_ptr, unit, part, SPLIT, BLOCK_M, BLOCK_N):
            return
        total = _sum_of_parts(parts_ptr, unit, SPLIT, BLOCK_M, BLOCK_N)
    _finish(
        total, pixel, n, n < TOTAL, bias_ptr, residual_ptr, y_ptr, sums_ptr, image, tile,
        PIXELS, TOTAL, BIAS, RESIDUAL, SUMS, ACTIVATION,
    )  # fmt: skip
