"""Dynamic group convolution for inference that computes the kept channels only, in channels-last float16 or bfloat16.

    select      Σ x [B, T, C]           to  index, gates [B, H, S]: the kept channels of each image and head
    pack        x [B, P, C]             to  packed [B, H, padded pixels, S]: those channels times their gates
    convolve    packed, or x            to  y [B, P', C'] and Σ y [B, T', C'], which the next layer's gate asks for
    sums        x [B, P, C]             to  Σ x [B, T, C]
    max_pool    x                       to  relu(max-pooling(x) + bias) and its sums

S is the number of kept channels, rounded up to what a matrix product takes. In ``convolve`` a program has pixels of
one image and outputs of one head; its K runs over taps and kept channels. Weights are [H, C, taps, O], so the row of
a kept channel is contiguous. A packed image has its padding around it, so that nothing is masked; read directly, x is
gathered value by value, and the gates are multiplied into the weights.

Sums over pixels are of T tiles each, added by the reader: in a fixed order, no atomics. Channels may lie in an order of
their own: ``places`` says where each is, and the lowest index, not the lowest place, wins a tie.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .saliency_gate import _keep_greatest, _relu

ACTIVATIONS = {"identity": 0, "relu": 1, "relu6": 2}
MOST_WEIGHTS = 16384  # of the generator that a program holds


@dataclass(frozen=True)
class Tile:
    """How ``convolve`` is cut: pixels, outputs and K of a product; from packed or directly read channels."""

    pixels: int
    outputs: int
    depth: int
    packed: bool = True
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class Norm:
    """``activation(x * scale + shift)``, before anything else is done with x."""

    scale: Tensor
    shift: Tensor
    activation: str


@dataclass(frozen=True)
class Geometry:
    """Of a convolution; square windows."""

    kernel: int
    stride: int
    padding: int

    def output(self, size: int) -> int:
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


def slots_for(keep: int) -> int:
    return triton.cdiv(keep, 16) * 16


def lay_out(weight: Tensor, heads: int, order: Tensor) -> Tensor:
    """``[C', C, k, k]`` to ``[H, C, k * k, O]``, inputs in their order in memory, O filled up with zeros to 16s."""
    parts = weight[:, order].unflatten(0, (-1, heads)).flatten(3).permute(1, 2, 3, 0)  # [H, C, taps, O]
    outputs = parts.shape[-1]
    return torch.nn.functional.pad(parts, (0, -outputs % 16)).contiguous()


def select(
    sums: Tensor, pixels: int, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: int, places: Tensor
) -> tuple[Tensor, Tensor]:
    """The generator and the head-wise gate in one launch: places [B, H, S] of what is kept, and saliencies [B, H, S].

    ``weight1`` and ``weight2`` are [H, D, C] both, float32. Slots beyond ``keep`` have a gate of zero.
    """
    (batch, tiles, channels), (heads, width, _) = sums.shape, weight1.shape
    slots = slots_for(keep)
    index = torch.empty(batch, heads, slots, device=sums.device, dtype=torch.int32)
    gates = torch.empty(batch, heads, slots, device=sums.device, dtype=torch.float32)
    scratch = torch.empty(batch, heads, channels, device=sums.device, dtype=torch.float32)
    all_c = max(32, triton.next_power_of_2(channels))
    block_d = min(triton.next_power_of_2(width), max(1, MOST_WEIGHTS // all_c))
    warps = 4 if all_c * block_d <= 4096 else 8
    _select_kernel[(heads, batch)](
        sums, places, weight1, weight2, bias, scratch, index, gates, tiles, pixels, heads, channels, width, keep,
        ALL_C=all_c, BLOCK_D=block_d, SLOTS=slots, ALL_S=triton.next_power_of_2(slots), num_warps=warps,
    )  # fmt: skip
    return index, gates


@triton.jit(do_not_specialize=["tiles", "pixels", "width", "keep"])
def _select_kernel(
    sums_ptr, places_ptr, weight1_ptr, weight2_ptr, bias_ptr, scratch_ptr, index_ptr, gates_ptr,
    tiles, pixels, heads, channels, width, keep,
    ALL_C: tl.constexpr, BLOCK_D: tl.constexpr, SLOTS: tl.constexpr, ALL_S: tl.constexpr,
):  # fmt: skip
    """One head of one image."""
    head, image = tl.program_id(0), tl.program_id(1)
    c, d = tl.arange(0, ALL_C), tl.arange(0, BLOCK_D)
    is_channel = c < channels
    place = tl.load(places_ptr + c, mask=is_channel, other=0)
    total = tl.zeros([ALL_C], tl.float32)
    for tile in range(tiles):
        total += tl.load(sums_ptr + (image * tiles + tile) * channels + place, mask=is_channel, other=0.0)
    pooled = total / pixels.to(tl.float32)
    score = tl.load(bias_ptr + head * channels + c, mask=is_channel, other=0.0)
    for first in range(0, width, BLOCK_D):
        unit = first + d
        inside = (unit < width)[:, None] & is_channel[None, :]
        at = (head * width + unit)[:, None] * channels + c[None, :]
        hidden = _relu(tl.sum(tl.load(weight1_ptr + at, mask=inside, other=0.0) * pooled[None, :], 1))
        score += tl.sum(tl.load(weight2_ptr + at, mask=inside, other=0.0) * hidden[:, None], 0)
    score = _relu(score)
    row = image * heads + head
    tl.store(scratch_ptr + row * channels + c, score, mask=is_channel)
    tl.debug_barrier()  # read back, as in saliency_gate: Triton 3.6 ranks a sum wrongly as it lies in registers
    score = tl.load(scratch_ptr + row * channels + c, mask=is_channel, other=0.0)
    kept = _keep_greatest(score, c, channels, keep) & is_channel
    slot = tl.cumsum(kept.to(tl.int32), 0) - 1
    at = row * SLOTS + slot
    tl.store(index_ptr + at, place, mask=kept)
    tl.store(gates_ptr + at, score, mask=kept)
    rest = tl.arange(0, ALL_S)
    is_rest = (rest >= keep) & (rest < SLOTS)
    tl.store(index_ptr + row * SLOTS + rest, tl.zeros([ALL_S], tl.int32), mask=is_rest)
    tl.store(gates_ptr + row * SLOTS + rest, tl.zeros([ALL_S], tl.float32), mask=is_rest)


@triton.jit
def _activate(x, KIND: tl.constexpr):
    if KIND > 0:
        x = _relu(x)
    if KIND == 2:
        x = tl.where(x > 6.0, 6.0, x)
    return x


def sums(x: Tensor, norm: Norm | None = None) -> Tensor:
    """Sums over pixels, [B, T, C] float32, of x [B, C, height, width], channels-last."""
    batch, channels, height, width = x.shape
    pixels, block_c = height * width, min(128, max(16, triton.next_power_of_2(channels)))
    block_p = 4096 // block_c
    tiles = min(16, triton.cdiv(pixels, block_p))
    rounds = triton.cdiv(pixels, block_p * tiles)
    out = torch.empty(batch, tiles, channels, device=x.device, dtype=torch.float32)
    _sums_kernel[(tiles, triton.cdiv(channels, block_c), batch)](
        x, *_norm_arguments(norm, x), out, pixels, tiles, rounds, channels,
        NORM=_kind(norm), BLOCK_P=block_p, BLOCK_C=block_c,
    )  # fmt: skip
    return out


def _norm_arguments(norm: Norm | None, other: Tensor) -> tuple[Tensor, Tensor]:
    return (norm.scale, norm.shift) if norm else (other, other)


def _kind(norm: Norm | None) -> int:
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


def pack(x: Tensor, index: Tensor, gates: Tensor, padding: int, keep: int, norm: Norm | None = None) -> Tensor:
    """The kept channels times their gates, zeros around the image: ``[B, H, height + 2p, width + 2p, S]``."""
    (batch, channels, height, width), (_, heads, slots) = x.shape, index.shape
    high, wide = height + 2 * padding, width + 2 * padding
    packed = torch.empty(batch, heads, high, wide, slots, device=x.device, dtype=x.dtype)
    block_s = min(64, slots & -slots)
    block_p = 512 // block_s  # few values a thread, so that neighbouring lanes read neighbouring channels
    rounds = min(8, triton.cdiv(high * wide, block_p))
    grid = (triton.cdiv(high * wide, block_p * rounds), heads * (slots // block_s), batch)
    _pack_kernel[grid](
        x, *_norm_arguments(norm, x), index, gates, packed, heads, channels, height, width, keep,
        PADDING=padding, SLOTS=slots, NORM=_kind(norm), ROUNDS=rounds, BLOCK_P=block_p, BLOCK_S=block_s,
    )  # fmt: skip
    return packed


@triton.jit(do_not_specialize=["keep"])
def _pack_kernel(
    x_ptr, scale_ptr, shift_ptr, index_ptr, gates_ptr, packed_ptr, heads, channels, height, width, keep,
    PADDING: tl.constexpr, SLOTS: tl.constexpr, NORM: tl.constexpr, ROUNDS: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Some kept channels of one head of one image."""
    blocks: tl.constexpr = SLOTS // BLOCK_S
    head, image = tl.program_id(1) // blocks, tl.program_id(2)
    s = tl.program_id(1) % blocks * BLOCK_S + tl.arange(0, BLOCK_S)
    high, wide = height + 2 * PADDING, width + 2 * PADDING
    row = image * heads + head
    c = tl.load(index_ptr + row * SLOTS + s)
    gate = tl.load(gates_ptr + row * SLOTS + s)
    x_ptr += image.to(tl.int64) * height * width * channels
    packed_ptr += row.to(tl.int64) * high * wide * SLOTS
    for step in tl.static_range(ROUNDS):
        p = (tl.program_id(0) * ROUNDS + step) * BLOCK_P + tl.arange(0, BLOCK_P)
        y, x = p // wide - PADDING, p % wide - PADDING
        inside = ((y >= 0) & (y < height) & (x >= 0) & (x < width))[:, None] & (s < keep)[None, :]
        value = tl.load(x_ptr + (y * width + x)[:, None] * channels + c[None, :], mask=inside, other=0.0)
        value = _normalize(value.to(tl.float32), scale_ptr, shift_ptr, c, s < keep, NORM) * gate[None, :]
        value = tl.where(inside, value, 0.0).to(packed_ptr.dtype.element_ty)
        tl.store(packed_ptr + p[:, None] * SLOTS + s[None, :], value, mask=(p < high * wide)[:, None])


def convolve(
    x: Tensor, index: Tensor, gates: Tensor, weight: Tensor, bias: Tensor | None, keep: int, outputs: int,
    geometry: Geometry, tile: Tile, *, norm: Norm | None = None, residual: Tensor | None = None,
    activation: str = "identity", by_head: bool = False, with_sums: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """``activation(conv(x) + bias + residual)``, channels-last, and its sums.

    ``weight`` is :func:`lay_out`'s, ``outputs`` are those of a head. Outputs ``o`` of head ``h`` lie at ``h * O + o``
    if ``by_head``, else at ``o * H + h``; bias and residual too.
    """
    batch, channels, height, width = x.shape
    heads, slots = index.shape[1:]
    high, wide = geometry.output(height), geometry.output(width)
    pixels, total = high * wide, heads * outputs
    y = torch.empty((batch, total, high, wide), device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
    tiles, blocks = triton.cdiv(pixels, tile.pixels), triton.cdiv(outputs, tile.outputs)
    parts = torch.empty(batch, tiles, total, device=x.device, dtype=torch.float32) if with_sums else None
    padding = geometry.padding
    a = pack(x, index, gates, padding, keep, norm) if tile.packed else x
    if norm is not None and not tile.packed:
        raise ValueError("what is read directly cannot be normalized")
    _convolve_kernel[(tiles, heads * blocks, batch)](
        a, index, gates, weight, bias if bias is not None else gates, residual if residual is not None else y, y,
        parts if parts is not None else gates,
        CHANNELS=channels, HEIGHT=height, WIDTH=width, WIDE=wide, PIXELS=pixels, HEADS=heads, OUTPUTS=outputs,
        ROW=weight.shape[3], SLOTS=slots, KERNEL=geometry.kernel, STRIDE=geometry.stride, PADDING=padding,
        PACKED=tile.packed, BIAS=bias is not None, RESIDUAL=residual is not None, BY_HEAD=by_head, SUMS=with_sums,
        ACTIVATION=ACTIVATIONS[activation], BLOCK_M=tile.pixels, BLOCK_N=tile.outputs, BLOCK_K=tile.depth,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y, parts


@triton.jit
def _convolve_kernel(
    a_ptr, index_ptr, gates_ptr, weight_ptr, bias_ptr, residual_ptr, y_ptr, sums_ptr,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
    HEADS: tl.constexpr, OUTPUTS: tl.constexpr, ROW: tl.constexpr, SLOTS: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr, PACKED: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    BY_HEAD: tl.constexpr, SUMS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Pixels of one image, outputs of one head."""
    TAPS: tl.constexpr = KERNEL * KERNEL
    BLOCKS: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    PACKED_WIDTH: tl.constexpr = WIDTH + 2 * PADDING
    tile, image = tl.program_id(0), tl.program_id(2)
    head, block = tl.program_id(1) // BLOCKS, tl.program_id(1) % BLOCKS
    pixel = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    is_pixel = pixel < PIXELS
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
    for step in range(TAPS * (SLOTS // BLOCK_K)):
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
    channel = head * OUTPUTS + o if BY_HEAD else o * HEADS + head
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=is_output, other=0.0)[None, :]
    at = image.to(tl.int64) * (PIXELS * HEADS * OUTPUTS) + (pixel * (HEADS * OUTPUTS))[:, None] + channel[None, :]
    exists = is_pixel[:, None] & is_output[None, :]
    if RESIDUAL:
        total += tl.load(residual_ptr + at, mask=exists, other=0.0).to(tl.float32)
    result = _activate(total, ACTIVATION).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + at, result, mask=exists)
    if SUMS:
        part = tl.sum(tl.where(is_pixel[:, None], result.to(tl.float32), 0.0), 0)
        tiles = tl.num_programs(0)
        tl.store(sums_ptr + (image * tiles + tile) * (HEADS * OUTPUTS) + channel, part, mask=is_output)


def max_pool(x: Tensor, bias: Tensor | None, activation: str, window: Geometry) -> tuple[Tensor, Tensor]:
    """``activation(max_pool2d(x) + bias)``, channels-last, and its sums."""
    batch, channels, height, width = x.shape
    high, wide = window.output(height), window.output(width)
    y = torch.empty((batch, channels, high, wide), device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
    block_c = min(128, max(16, triton.next_power_of_2(channels)))
    block_p = 2048 // block_c
    tiles = triton.cdiv(high * wide, block_p)
    out = torch.empty(batch, tiles, channels, device=x.device, dtype=torch.float32)
    _max_pool_kernel[(tiles, triton.cdiv(channels, block_c), batch)](
        x, bias if bias is not None else x, y, out, channels, height, width, high, wide,
        BIAS=bias is not None, ACTIVATION=ACTIVATIONS[activation], KERNEL=window.kernel, STRIDE=window.stride,
        PADDING=window.padding, BLOCK_P=block_p, BLOCK_C=block_c,
    )  # fmt: skip
    return y, out


@triton.jit
def _max_pool_kernel(
    x_ptr, bias_ptr, y_ptr, sums_ptr, channels, height, width, high, wide,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    tile, image = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    is_pixel, is_channel = p < high * wide, c < channels
    exists = is_pixel[:, None] & is_channel[None, :]
    x_ptr += image.to(tl.int64) * height * width * channels
    y_ptr += image.to(tl.int64) * high * wide * channels
    best = tl.full([BLOCK_P, BLOCK_C], -float("inf"), tl.float32)
    for tap in tl.static_range(KERNEL * KERNEL):
        y, x = p // wide * STRIDE + tap // KERNEL - PADDING, p % wide * STRIDE + tap % KERNEL - PADDING
        there = (y >= 0) & (y < height) & (x >= 0) & (x < width)
        at = (y * width + x)[:, None] * channels + c[None, :]
        value = tl.load(x_ptr + at, mask=exists & there[:, None], other=-float("inf")).to(tl.float32)
        best = tl.where((value > best) | (value != value), value, best)  # a NaN stays one
    if BIAS:
        best += tl.load(bias_ptr + c, mask=is_channel, other=0.0)[None, :]
    result = _activate(best, ACTIVATION).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + p[:, None] * channels + c[None, :], result, mask=exists)
    part = tl.sum(tl.where(exists, result.to(tl.float32), 0.0), 0)
    tl.store(sums_ptr + (image * tl.num_programs(0) + tile) * channels + c, part, mask=is_channel)
