"""Grouped 3x3 convolution, stride 1, padding 1, no bias, for groups of few channels.

    y[b, g, o, r, c] = Σ_{i, ky, kx} w[g, o, i, ky, kx] · x[b, g, i, r + ky - 1, c + kx - 1]

A program takes a tile of whole image rows of one group. The vertical taps sit on the contracted side of one matrix
product, where shifted rows load as fast as any; the horizontal taps sit on its output side, so no load is misaligned:

    z[(r, c), (o, kx)] = Σ_{(ky, i)} x[(r + ky - 1, c), (ky, i)] · w[(ky, i), (o, kx)]      3 of 4 taps used, each side
    y[(r, c), o]       = Σ_{kx} z[(r, c + kx - 1), (o, kx)]                                 a shift inside the tile

The input's gradient is the same convolution of dy with the taps flipped and the channels swapped. The weight's is the
product of the same x tile with the shifted dy: its partial sums over chunks of rows go to a buffer and a second launch
adds them in a fixed order. Accumulation is in fp32; fp32 inputs multiply as cuDNN's do, see precision.py.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import precision

BUSY_PROGRAMS = 512  # enough for the 132 multiprocessors of an H200
MAX_WIDTH = 256


def forward(x: Tensor, weight: Tensor, groups: int, y: Tensor | None = None) -> Tensor:
    """y [B, G·O, H, W] from x [B, G·I, H, W] and weight [G·O, I, 3, 3]; into ``y``, if its images are contiguous."""
    inside, outside = _check(x, weight, groups)
    return _convolve(x, weight, groups, inside, outside, transposed=False, y=y)


def backward(dy: Tensor, x: Tensor, weight: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Gradients (dx, dweight) of `forward` from its output's gradient and its inputs."""
    return input_gradient(dy, x, weight, groups), weight_gradient(dy, x, weight, groups)


def input_gradient(dy: Tensor, x: Tensor, weight: Tensor, groups: int) -> Tensor:
    inside, outside = _check(x, weight, groups, dy)
    return _convolve(dy, weight, groups, outside, inside, transposed=True)


def weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, groups: int) -> Tensor:
    inside, outside = _check(x, weight, groups, dy)
    return _weight_gradient(dy, x, weight, groups, inside, outside)


def _check(x: Tensor, weight: Tensor, groups: int, dy: Tensor | None = None) -> tuple[int, int]:
    """Channels (in, out) of a group, after a check of what the kernels take for granted."""
    outside, inside = weight.shape[0] // groups, weight.shape[1]
    if weight.shape != (groups * outside, inside, 3, 3) or x.dim() != 4 or x.shape[1] != groups * inside:
        raise ValueError(f"no grouped 3x3: x {tuple(x.shape)}, weight {tuple(weight.shape)}, {groups} groups")
    if not (x.is_contiguous() and weight.is_contiguous()):
        raise ValueError("x (NCHW) and weight must be contiguous")
    if x.shape[3] > MAX_WIDTH or not 0 < x.numel() < 2**31:
        raise ValueError(f"x must be at most {MAX_WIDTH} wide and hold 1 to 2^31 - 1 elements, got {tuple(x.shape)}")
    if dy is not None and (dy.shape != (len(x), groups * outside, *x.shape[2:]) or not dy[:1].is_contiguous()):
        raise ValueError(f"dy must be of y's shape and its images contiguous, got {tuple(dy.shape)}")
    return inside, outside


def _tile_shape(x: Tensor, groups: int) -> tuple[int, int, int]:
    """(rows of a tile, its width, number of tiles), rows counted through all images: 128 pixels, or 64 if few tiles."""
    rows, block_w = x.shape[0] * x.shape[2], triton.next_power_of_2(x.shape[3])
    few = rows * block_w * groups < BUSY_PROGRAMS * 128
    block_r = max(1, (64 if few else 128) // block_w)
    return block_r, block_w, triton.cdiv(rows, block_r)


def _convolve(
    x: Tensor, weight: Tensor, groups: int, inside: int, outside: int, transposed: bool, y: Tensor | None = None
) -> Tensor:
    batch, _, height, width = x.shape
    block_r, block_w, tiles = _tile_shape(x, groups)
    y = x.new_empty((batch, groups * outside, height, width)) if y is None else y
    block_i, block_o = _channel_blocks(inside, outside)
    _convolve_kernel[(tiles, groups, triton.cdiv(outside, block_o))](
        x, weight, y, batch, x.stride(0), y.stride(0), H=height, W=width, IN=inside, OUT=outside, TRANSPOSED=transposed,
        BLOCK_R=block_r, BLOCK_W=block_w, BLOCK_I=block_i, BLOCK_O=block_o,
        PRECISION=precision.of_products(),
    )  # fmt: skip
    return y


def _weight_gradient(dy: Tensor, x: Tensor, weight: Tensor, groups: int, inside: int, outside: int) -> Tensor:
    batch, _, height, width = x.shape
    block_r, block_w, tiles = _tile_shape(x, groups)
    block_i, block_o = _channel_blocks(inside, outside)
    per_chunk = triton.cdiv(tiles * groups, BUSY_PROGRAMS)
    chunks = triton.cdiv(tiles, per_chunk)
    partial = weight.new_empty((chunks, weight.numel()), dtype=torch.float32)
    _weight_partials_kernel[(chunks, groups, triton.cdiv(inside, block_i) * triton.cdiv(outside, block_o))](
        dy, x, partial, batch, groups, dy.stride(0), weight.numel(), H=height, W=width, IN=inside,
        OUT=outside, TILES=per_chunk, BLOCK_R=block_r, BLOCK_W=block_w, BLOCK_I=block_i, BLOCK_O=block_o,
        PRECISION=precision.of_products(),
    )  # fmt: skip
    dweight = torch.empty_like(weight)
    grid = (triton.cdiv(weight.numel(), 16),)
    _add_partials_kernel[grid](partial, dweight, chunks, weight.numel(), CHUNKS=triton.next_power_of_2(chunks))
    return dweight


def _channel_blocks(inside: int, outside: int) -> tuple[int, int]:
    """Channels of a group that a product takes at once: (4·in) x (4·out) is the weight's tile."""
    return min(32, max(4, triton.next_power_of_2(inside))), min(32, max(2, triton.next_power_of_2(outside)))


@triton.jit
def _pixels(tile, B, H: tl.constexpr, W: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr):
    """Image, row and column of a tile's pixels, and whether they exist: each [BLOCK_R·BLOCK_W, 1]."""
    m = tl.arange(0, BLOCK_R * BLOCK_W)[:, None]
    row, col = tile * BLOCK_R + m // BLOCK_W, m % BLOCK_W
    return row // H, row % H, col, (row < B * H) & (col < W)


@triton.jit
def _load_rows(x_ptr, image_at, row, col, inside, group, first_i, H: tl.constexpr, W: tl.constexpr,
               IN: tl.constexpr, BLOCK_I: tl.constexpr):  # fmt: skip
    """x [pixels, (ky, i)]: each pixel's channels from its own row, the row above and the row below."""
    k = tl.arange(0, 4 * BLOCK_I)[None, :]
    i, ky = first_i + k % BLOCK_I, k // BLOCK_I
    source = row + ky - 1
    mask = inside & (source >= 0) & (source < H) & (ky < 3) & (i < IN)
    offsets = image_at + (group * IN + i) * (H * W) + source * W + col
    return tl.load(x_ptr + offsets, mask=mask, other=0.0)


@triton.jit
def _weight_tile(group, first_i, first_o, IN: tl.constexpr, OUT: tl.constexpr, BLOCK_I: tl.constexpr,
                 BLOCK_O: tl.constexpr, TRANSPOSED: tl.constexpr):  # fmt: skip
    """Offsets [(ky, i), (o, kx)] into the weight, and their mask; transposed: taps flipped, in and out swapped."""
    k = tl.arange(0, 4 * BLOCK_I)[:, None]
    n = tl.arange(0, 4 * BLOCK_O)[None, :]
    i, ky, o, kx = first_i + k % BLOCK_I, k // BLOCK_I, first_o + n // 4, n % 4
    mask = (i < IN) & (ky < 3) & (o < OUT) & (kx < 3)
    if TRANSPOSED:
        return ((group * IN + i) * OUT + o) * 9 + (8 - ky * 3 - kx), mask
    else:
        return ((group * OUT + o) * IN + i) * 9 + (ky * 3 + kx), mask


@triton.jit(do_not_specialize=["B"])
def _convolve_kernel(
    x_ptr, w_ptr, y_ptr, B, x_stride, y_stride, H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    TRANSPOSED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, group, first_o = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BLOCK_O
    PIXELS: tl.constexpr = BLOCK_R * BLOCK_W
    image, row, col, inside = _pixels(tile, B, H, W, BLOCK_R, BLOCK_W)
    z = tl.zeros((PIXELS, 4 * BLOCK_O), tl.float32)
    for first_i in tl.static_range(0, IN, BLOCK_I):
        x = _load_rows(x_ptr, image * x_stride, row, col, inside, group, first_i, H, W, IN, BLOCK_I)
        offsets, mask = _weight_tile(group, first_i, first_o, IN, OUT, BLOCK_I, BLOCK_O, TRANSPOSED)
        z = tl.dot(x, tl.load(w_ptr + offsets, mask=mask, other=0.0).to(x.dtype), acc=z, input_precision=PRECISION)
    # y[c] = Σ_kx z[c + kx - 1, kx]; a neighbour beyond the row's ends is padding
    z = tl.reshape(z, (BLOCK_R, BLOCK_W, 4 * BLOCK_O))
    neighbour = tl.arange(0, BLOCK_W)[:, None] + tl.arange(0, 4 * BLOCK_O)[None, :] % 4 - 1
    index = tl.minimum(tl.maximum(neighbour, 0), BLOCK_W - 1)[None, :, :]
    z = tl.gather(z, tl.broadcast_to(index, (BLOCK_R, BLOCK_W, 4 * BLOCK_O)), axis=1)
    z = tl.where(((neighbour >= 0) & (neighbour < W))[None, :, :], z, 0.0)
    y = tl.sum(tl.reshape(z, (PIXELS, BLOCK_O, 4)), axis=2)  # kx = 3 holds zeros
    o = first_o + tl.arange(0, BLOCK_O)[None, :]
    offsets = image * y_stride + (group * OUT + o) * (H * W) + row * W + col
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=inside & (o < OUT))


@triton.jit(do_not_specialize=["B", "groups", "numel"])
def _weight_partials_kernel(
    dy_ptr, x_ptr, partial_ptr, B, groups, dy_stride, numel, H: tl.constexpr, W: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, TILES: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """partial [chunks, weight]: dw[(ky, i), (o, kx)] = Σ_{(r, c)} x[(r + ky - 1, c), i] · dy[(r, c - kx + 1), o]."""
    chunk, group, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_i, first_o = block % tl.cdiv(IN, BLOCK_I) * BLOCK_I, block // tl.cdiv(IN, BLOCK_I) * BLOCK_O
    n = tl.arange(0, 4 * BLOCK_O)[None, :]
    o, shift = first_o + n // 4, 1 - n % 4
    dw = tl.zeros((4 * BLOCK_I, 4 * BLOCK_O), tl.float32)
    for tile in range(TILES):
        image, row, col, inside = _pixels(chunk * TILES + tile, B, H, W, BLOCK_R, BLOCK_W)
        x_at = image * (groups * IN * H * W)
        x = _load_rows(x_ptr, x_at, row, col, inside, group, first_i, H, W, IN, BLOCK_I)
        mask = inside & (col + shift >= 0) & (col + shift < W) & (o < OUT)
        offsets = image * dy_stride + (group * OUT + o) * (H * W) + row * W + col + shift
        dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0)
        dw = tl.dot(tl.trans(x), dy, acc=dw, input_precision=PRECISION)
    offsets, mask = _weight_tile(group, first_i, first_o, IN, OUT, BLOCK_I, BLOCK_O, False)
    tl.store(partial_ptr + chunk * numel + offsets, dw, mask=mask)


@triton.jit(do_not_specialize=["chunks"])
def _add_partials_kernel(partial_ptr, dweight_ptr, chunks, numel, CHUNKS: tl.constexpr):
    """dweight [numel] = Σ over chunks of partial [chunks, numel], 16 elements a program."""
    c = tl.arange(0, CHUNKS)[:, None]
    j = tl.program_id(0) * 16 + tl.arange(0, 16)
    part = tl.load(partial_ptr + c * numel + j[None, :], mask=(c < chunks) & (j[None, :] < numel), other=0.0)
    tl.store(dweight_ptr + j, tl.sum(part, axis=0).to(dweight_ptr.dtype.element_ty), mask=j < numel)
