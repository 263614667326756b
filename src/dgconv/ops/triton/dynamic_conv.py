"""Dynamic group convolution for inference, in channels-last float16 or bfloat16: as the tile says, over the kept
channels only or, with weights of each image, over all of them.

    pack        x [B, P, C]             to  packed [B, H, padded pixels, S]: the kept channels times their gates
    convolve    packed, or x            to  y [B, P', C'] and Σ y [B, T', C'], which the next layer's gate asks for

S is the number of kept channels, rounded up to what a matrix product takes. A program has pixels of one image and
outputs of one head; its K runs over taps and kept channels. Weights are [H, C, taps, O], so the row of a kept channel
is contiguous. A packed image has its padding around it, so that nothing is masked; read directly, x is gathered value
by value, and the gates are multiplied into the weights.

Channels may lie in an order of their own: ``places`` says where each is, and the lowest index, not the lowest place,
wins a tie.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import whole_conv
from .planes import _normalize, kind_of, norm_arguments
from .selection import Selection
from .tiles import ACTIVATIONS, Geometry, Norm, Tile, _finish, _is_last, _sum_of_parts, make_results

ENOUGH = 1056  # programs that keep a GPU busy; of fewer, none should take several rounds


@dataclass(frozen=True)
class Weights:
    """In both layouts: by kept channel, and whole."""

    kept: Tensor
    whole: Tensor


def lay_out(weight: Tensor, heads: int, order: Tensor, by_head: bool) -> Weights:
    """``[C', C, k, k]`` to ``[H, C, k * k, O]`` and ``[k * k, C, C']``, inputs in their order in memory, outputs filled
    up with zeros to 16s."""
    parts = weight[:, order].unflatten(0, (-1, heads)).flatten(3).permute(1, 2, 3, 0)  # [H, C, taps, O]
    outputs = parts.shape[-1]
    own = torch.arange(len(weight), device=weight.device)
    own = own.view(-1, heads).T.flatten() if by_head else own
    whole = whole_conv.lay_out(weight, order, own)
    return Weights(torch.nn.functional.pad(parts, (0, -outputs % 16)).contiguous(), whole)


def pack(x: Tensor, index: Tensor, gates: Tensor, padding: int, keep: int, norm: Norm | None = None) -> Tensor:
    """The kept channels times their gates, zeros around the image: ``[B, H, height + 2p, width + 2p, S]``."""
    (batch, channels, height, width), (_, heads, slots) = x.shape, index.shape
    high, wide = height + 2 * padding, width + 2 * padding
    packed = torch.empty(batch, heads, high, wide, slots, device=x.device, dtype=x.dtype)
    every = heads * slots
    block_s = min(128, every & -every)
    block_p = 512 // block_s  # few values a thread, so that neighbouring lanes read neighbouring channels
    tiles, blocks = triton.cdiv(high * wide, block_p), every // block_s
    rounds = next((rounds for rounds in (8, 4, 2) if batch * blocks * tiles >= rounds * ENOUGH), 1)
    grid = (triton.cdiv(tiles, rounds), blocks, batch)
    _pack_kernel[grid](
        x, *norm_arguments(norm, x), index, gates, packed, keep,
        HEADS=heads, CHANNELS=channels, HEIGHT=height, WIDTH=width, PADDING=padding, SLOTS=slots,
        NORM=kind_of(norm), ROUNDS=rounds, BLOCK_P=block_p, BLOCK_S=block_s,
    )  # fmt: skip
    return packed


@triton.jit(do_not_specialize=["keep"])
def _pack_kernel(
    x_ptr, scale_ptr, shift_ptr, index_ptr, gates_ptr, packed_ptr, keep,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PADDING: tl.constexpr,
    SLOTS: tl.constexpr, NORM: tl.constexpr, ROUNDS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Some slots of one image, those of all heads in a row: what several of them keep is in the first cache."""
    image = tl.program_id(2)
    slot = tl.program_id(1) * BLOCK_S + tl.arange(0, BLOCK_S)
    head, s = slot // SLOTS, slot % SLOTS
    high: tl.constexpr = HEIGHT + 2 * PADDING
    wide: tl.constexpr = WIDTH + 2 * PADDING
    c = tl.load(index_ptr + image * (HEADS * SLOTS) + slot)
    gate = tl.load(gates_ptr + image * (HEADS * SLOTS) + slot)
    x_ptr += image.to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
    packed_ptr += image.to(tl.int64) * (HEADS * high * wide * SLOTS)
    to = head * (high * wide * SLOTS) + s
    for step in tl.static_range(ROUNDS):
        p = (tl.program_id(0) * ROUNDS + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        y, x = p // wide - PADDING, p % wide - PADDING
        inside = ((y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH))[:, None] & (s < keep)[None, :]
        value = tl.load(x_ptr + (y * WIDTH + x)[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0)
        value = _normalize(value.to(tl.float32), scale_ptr, shift_ptr, c, s < keep, NORM) * gate[None, :]
        value = tl.where(inside, value, 0.0).to(packed_ptr.dtype.element_ty)
        tl.store(packed_ptr + p[:, None] * SLOTS + to[None, :], value, mask=(p < high * wide)[:, None])


def arrivals_for(tile: Tile, pixels: int, heads: int, outputs: int) -> int:
    """Counters that a convolution of an image takes: one a tile of outputs, if programs share one."""
    if tile.split == 1:
        return 1
    tiles = triton.cdiv(pixels, tile.pixels)
    if tile.way in ("folded", "gated"):
        return tiles * triton.cdiv(heads * outputs, tile.outputs)
    return tiles * heads * triton.cdiv(outputs, tile.outputs)


def convolve(
    x: Tensor, selected: Selection, weights: Weights, bias: Tensor | None, keep: int, outputs: int,
    geometry: Geometry, tile: Tile, *, norm: Norm | None = None, residual: Tensor | None = None,
    activation: str = "identity", by_head: bool = False, with_sums: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """``activation(conv(x) + bias + residual)``, channels-last, and its sums.

    ``weights`` are :func:`lay_out`'s, ``outputs`` are those of a head. Outputs ``o`` of head ``h`` lie at ``h * O + o``
    if ``by_head``, else at ``o * H + h``; bias and residual too.
    """
    if norm is not None and tile.way != "packed":
        raise ValueError("only what is packed can be normalized")
    if tile.way in ("folded", "gated"):
        return whole_conv.convolve(
            x, selected.every, selected.arrivals, weights.whole, bias, outputs, geometry, tile,
            residual=residual, activation=activation, by_head=by_head, with_sums=with_sums,
        )  # fmt: skip
    (batch, channels, height, width), weight = x.shape, weights.kept
    index, gates = selected.index, selected.gates
    heads, slots = index.shape[1:]
    y, sums = make_results(x, heads * outputs, geometry, tile, with_sums)
    pixels, wide = y.shape[2:].numel(), y.shape[3]
    tiles, blocks = triton.cdiv(pixels, tile.pixels), triton.cdiv(outputs, tile.outputs)
    parts = gates
    if tile.split > 1:
        parts = gates.new_empty(batch * tiles * heads * blocks * tile.split, tile.pixels, tile.outputs)
    packed = tile.way == "packed"
    a = pack(x, index, gates, geometry.padding, keep, norm) if packed else x
    _convolve_kernel[(tiles, heads * blocks * tile.split, batch)](
        a, index, gates, weight, bias if bias is not None else gates, residual if residual is not None else y, y,
        sums if sums is not None else gates, parts, selected.arrivals,
        CHANNELS=channels, HEIGHT=height, WIDTH=width, WIDE=wide, PIXELS=pixels, HEADS=heads, OUTPUTS=outputs,
        ROW=weight.shape[3], SLOTS=slots, PACKED=packed, BIAS=bias is not None, RESIDUAL=residual is not None,
        BY_HEAD=by_head, SUMS=with_sums, ACTIVATION=ACTIVATIONS[activation], **geometry.options, **tile.options,
    )  # fmt: skip
    return y, sums


@triton.jit
def _convolve_kernel(
    a_ptr, index_ptr, gates_ptr, weight_ptr, bias_ptr, residual_ptr, y_ptr, sums_ptr, parts_ptr, arrivals_ptr,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, ROW: tl.constexpr, SLOTS: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr, PACKED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    BY_HEAD: tl.constexpr, SUMS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Pixels of one image, outputs of one head; with SPLIT, a part of the taps and kept channels."""
    TAPS: tl.constexpr = KERNEL * KERNEL
    BLOCKS: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    PACKED_WIDTH: tl.constexpr = WIDTH + 2 * PADDING
    STEPS: tl.constexpr = TAPS * (SLOTS // BLOCK_K)
    EACH: tl.constexpr = (STEPS + SPLIT - 1) // SPLIT
    tile, image = tl.program_id(0), tl.program_id(2)
    unit, part = tl.program_id(1) // SPLIT, tl.program_id(1) % SPLIT
    head, block = unit // BLOCKS, unit % BLOCKS
    pixel = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = tl.minimum(pixel, PIXELS - 1)  # those beyond compute the last one again, and nobody stores it
    top, left = inside // WIDE * STRIDE, inside % WIDE * STRIDE
    o = block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_output = o < OUTPUTS
    row = image * HEADS + head
    index_ptr += row * SLOTS
    gates_ptr += row * SLOTS
    k = tl.arange(0, BLOCK_K)
    if PACKED:
        a_ptr += row.to(tl.int64) * ((HEIGHT + 2 * PADDING) * PACKED_WIDTH * SLOTS)
        a_ptrs = a_ptr + ((top * PACKED_WIDTH + left) * SLOTS)[:, None] + k[None, :]
    else:
        a_ptr += image.to(tl.int64) * (HEIGHT * WIDTH * CHANNELS)
        a_ptrs = a_ptr + ((top - PADDING) * WIDTH + left - PADDING)[:, None] * CHANNELS + tl.zeros_like(k)[None, :]
    weight_ptrs = weight_ptr + head * (CHANNELS * TAPS * ROW) + tl.minimum(o, ROW - 1)[None, :]
    if OUTPUTS % BLOCK_N == 0:
        weight_ptrs = weight_ptr + head * (CHANNELS * TAPS * ROW) + o[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(part * EACH, tl.minimum(part * EACH + EACH, STEPS)):
        tap, first = step % TAPS, step // TAPS * BLOCK_K
        down, right = tap // KERNEL, tap % KERNEL
        c = tl.load(index_ptr + first + k)
        weight = tl.load(weight_ptrs + (c * (TAPS * ROW) + tap * ROW)[:, None])
        if PACKED:
            a = tl.load(a_ptrs + ((down * PACKED_WIDTH + right) * SLOTS + first))
        else:
            y, x = top + down - PADDING, left + right - PADDING
            there = (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
            a = tl.load(a_ptrs + (down * WIDTH + right) * CHANNELS + c[None, :], mask=there[:, None], other=0.0)
            gate = tl.load(gates_ptr + first + k)
            weight = (weight.to(tl.float32) * gate[:, None]).to(a.dtype)
        total = tl.dot(a, weight, total)
    if SPLIT > 1:
        unit += (image * tl.num_programs(0) + tile) * (HEADS * BLOCKS)
        if not _is_last(total, parts_ptr, arrivals_ptr, unit, part, SPLIT, BLOCK_M, BLOCK_N):
            return
        total = _sum_of_parts(parts_ptr, unit, SPLIT, BLOCK_M, BLOCK_N)
    channel = head * OUTPUTS + o if BY_HEAD else o * HEADS + head
    _finish(
        total, pixel, channel, is_output, bias_ptr, residual_ptr, y_ptr, sums_ptr, image, tile,
        PIXELS, HEADS * OUTPUTS, BIAS, RESIDUAL, SUMS, ACTIVATION,
    )  # fmt: skip
