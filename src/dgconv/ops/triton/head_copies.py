"""What surrounds the convolutions of the by-head training form, for channels-last tensors: four passes over memory.

The convolutions themselves are cuDNN's, one a head. With pixels p of all images, in the order of the layout:

    scale       x [P, C], g [B, H, C]  to  s[h, p, c] = x[p, c] · g[b(p), h, c]
    interleave  y_h [P, O]             to  y[p, o·H + h] = y_h[p, o]
    separate    dy [P, O·H]            to  dy_h [P, O]
    combine     ds_h [P, C], x, g      to  dx[p, c] = Σ_h ds_h[p, c] · g[b, h, c]
                                           dg[b, h, c] = Σ_{p in b} ds_h[p, c] · x[p, c]

Left to torch's elementwise kernels they took twice as long as the convolutions: a gate that is broadcast over pixels
keeps those from loading more than one value at a time, and every head reads x again.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # elements a program holds of one tensor
MAX_CHUNKS = 16  # partial sums of dg over the pixels of an image
AT_ONCE = 4  # tensors, one a head, that a launch takes


def scale(x: Tensor, gates: Tensor) -> list[Tensor]:
    """One copy of x [B, C, height, width] for each head, times its gates."""
    batch, channels, height, width = x.shape
    heads, pixels = gates.shape[1], height * width
    copies = x.new_empty((heads, batch, height, width, channels))
    block_p, block_c = _tile(channels)
    _scale_kernel[(triton.cdiv(pixels, block_p), batch, triton.cdiv(channels, block_c))](
        x, gates.contiguous(), copies, pixels, C=channels, HEADS=heads, BLOCK_P=block_p, BLOCK_C=block_c,
    )  # fmt: skip
    return [copy.permute(0, 3, 1, 2) for copy in copies]


def interleave(parts: list[Tensor]) -> Tensor:
    """[B, O·H, height, width] from the [B, O, height, width] of each head."""
    batch, channels, height, width = parts[0].shape
    whole = parts[0].new_empty((batch, height, width, channels * len(parts)))
    block_p, block_c = _tile(channels, AT_ONCE)
    pixels = batch * height * width
    for first, some in _groups(parts):
        _interleave_kernel[(triton.cdiv(pixels, block_p), triton.cdiv(channels, block_c))](
            *some, whole, pixels, C=channels, HEADS=len(parts), FIRST=first, COUNT=min(AT_ONCE, len(parts) - first),
            BLOCK_P=block_p, BLOCK_C=block_c,
        )  # fmt: skip
    return whole.permute(0, 3, 1, 2)


def separate(whole: Tensor, heads: int) -> list[Tensor]:
    """The channels h, h+H, h+2H, ... of each head h."""
    batch, channels, height, width = whole.shape
    channels //= heads
    parts = whole.new_empty((heads, batch, height, width, channels))
    block_p, block_c = _tile(channels)
    pixels = batch * height * width
    _separate_kernel[(triton.cdiv(pixels, block_p), triton.cdiv(channels, block_c))](
        whole, parts, pixels, C=channels, HEADS=heads, BLOCK_P=block_p, BLOCK_C=block_c
    )
    return [part.permute(0, 3, 1, 2) for part in parts]


def combine(grads: list[Tensor], x: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and gates from those of the scaled copies."""
    batch, channels, height, width = x.shape
    heads, pixels = gates.shape[1], height * width
    block_p, block_c = _tile(channels)
    tiles = triton.cdiv(triton.cdiv(pixels, block_p), MAX_CHUNKS)
    chunks = triton.cdiv(pixels, block_p * tiles)
    grad_x = torch.empty_like(x)
    partial = x.new_empty((batch, chunks, heads, channels), dtype=torch.float32)
    for first, some in _groups(grads):
        _combine_kernel[(chunks, batch, triton.cdiv(channels, block_c))](
            *some, x, gates.contiguous(), grad_x, partial, pixels, C=channels, HEADS=heads, FIRST=first,
            COUNT=min(AT_ONCE, heads - first), TILES=tiles, BLOCK_P=block_p, BLOCK_C=block_c,
        )  # fmt: skip
    return grad_x, partial.sum(1).to(gates.dtype)


def add_pooled(grad_x: Tensor, grad_pooled: Tensor) -> None:
    """grad_x += the gradient [B, C] of its mean over the pixels, in place."""
    batch, channels, height, width = grad_x.shape
    block_p, block_c = _tile(channels)
    _add_pooled_kernel[(triton.cdiv(height * width, block_p), batch, triton.cdiv(channels, block_c))](
        grad_x, grad_pooled.contiguous(), height * width, C=channels, BLOCK_P=block_p, BLOCK_C=block_c
    )


def _groups(parts: list[Tensor]) -> list[tuple[int, list[Tensor]]]:
    """The tensors a few at a time, with the first one's number; the last group is filled up with what is not read."""
    groups = [(first, parts[first : first + AT_ONCE]) for first in range(0, len(parts), AT_ONCE)]
    return [(first, some + [some[0]] * (AT_ONCE - len(some))) for first, some in groups]


def _tile(channels: int, tensors: int = 1) -> tuple[int, int]:
    """Pixels and channels of a tile, several of which a program holds at once."""
    block_c = min(128, triton.next_power_of_2(channels))
    return max(1, TILE // (block_c * tensors)), block_c


@triton.jit
def _scale_kernel(
    x_ptr, gates_ptr, copies_ptr, pixels, C: tl.constexpr, HEADS: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    image, images = tl.program_id(1), tl.num_programs(1)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (p < pixels) & (c < C)[None, :]
    at = (image.to(tl.int64) * pixels + p) * C + c[None, :]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    for head in tl.static_range(HEADS):
        gate = tl.load(gates_ptr + (image * HEADS + head) * C + c, mask=c < C, other=0.0).to(tl.float32)
        copy = (x * gate[None, :]).to(copies_ptr.dtype.element_ty)
        tl.store(copies_ptr + head * images.to(tl.int64) * pixels * C + at, copy, mask=inside)


@triton.jit
def _interleave_kernel(
    part0_ptr, part1_ptr, part2_ptr, part3_ptr, whole_ptr, pixels, C: tl.constexpr, HEADS: tl.constexpr,
    FIRST: tl.constexpr, COUNT: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    p = (tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P))[:, None]
    c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    inside, at = (p < pixels) & (c < C), p * C + c
    if HEADS == 4:  # the usual number: one store of neighbours instead of four of every fourth
        even = tl.join(tl.load(part0_ptr + at, mask=inside), tl.load(part2_ptr + at, mask=inside))
        odd = tl.join(tl.load(part1_ptr + at, mask=inside), tl.load(part3_ptr + at, mask=inside))
        whole = tl.reshape(tl.join(even, odd), (BLOCK_P, BLOCK_C * 4))
        o = (tl.program_id(1) * BLOCK_C * 4 + tl.arange(0, BLOCK_C * 4))[None, :]
        tl.store(whole_ptr + p * (C * 4) + o, whole, mask=(p < pixels) & (o < C * 4))
    else:
        whole_ptr += at * HEADS + FIRST
        tl.store(whole_ptr, tl.load(part0_ptr + at, mask=inside), mask=inside)
        if COUNT > 1:
            tl.store(whole_ptr + 1, tl.load(part1_ptr + at, mask=inside), mask=inside)
        if COUNT > 2:
            tl.store(whole_ptr + 2, tl.load(part2_ptr + at, mask=inside), mask=inside)
        if COUNT > 3:
            tl.store(whole_ptr + 3, tl.load(part3_ptr + at, mask=inside), mask=inside)


@triton.jit
def _separate_kernel(
    whole_ptr, parts_ptr, pixels, C: tl.constexpr, HEADS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    p = (tl.program_id(0).to(tl.int64) * BLOCK_P + tl.arange(0, BLOCK_P))[:, None]
    c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    inside, at = (p < pixels) & (c < C), p * C + c
    for head in tl.static_range(HEADS):  # of lines that the first one has brought in
        part = tl.load(whole_ptr + at * HEADS + head, mask=inside)
        tl.store(parts_ptr + (head * C) * tl.cast(pixels, tl.int64) + at, part, mask=inside)


@triton.jit
def _add_head(grad_x, total, grad_ptr, at, inside, x, gate):
    """dx and the sum dg of a head, with what a tile of its gradient adds to either."""
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
    return grad_x + grad * gate, total + tl.sum(grad * x, 0)


@triton.jit
def _combine_kernel(
    grad0_ptr, grad1_ptr, grad2_ptr, grad3_ptr, x_ptr, gates_ptr, grad_x_ptr, partial_ptr, pixels, C: tl.constexpr,
    HEADS: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, TILES: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A chunk of one image's pixels: its part of dx, and its share of the sums dg [B, chunks, H, C]."""
    chunk, chunks, image = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    gates_ptr += (image * HEADS + FIRST) * C + c
    partial_ptr += ((image * chunks + chunk) * HEADS + FIRST) * C + c
    gate0 = tl.load(gates_ptr, mask=c < C, other=0.0).to(tl.float32)[None, :]
    gate1 = tl.load(gates_ptr + C, mask=(c < C) & (COUNT > 1), other=0.0).to(tl.float32)[None, :]
    gate2 = tl.load(gates_ptr + 2 * C, mask=(c < C) & (COUNT > 2), other=0.0).to(tl.float32)[None, :]
    gate3 = tl.load(gates_ptr + 3 * C, mask=(c < C) & (COUNT > 3), other=0.0).to(tl.float32)[None, :]
    sum0, sum1 = tl.zeros([BLOCK_C], tl.float32), tl.zeros([BLOCK_C], tl.float32)
    sum2, sum3 = tl.zeros([BLOCK_C], tl.float32), tl.zeros([BLOCK_C], tl.float32)
    for tile in range(TILES):
        p = ((chunk * TILES + tile) * BLOCK_P + tl.arange(0, BLOCK_P))[:, None]
        inside = (p < pixels) & (c < C)[None, :]
        at = (image.to(tl.int64) * pixels + p) * C + c[None, :]
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad0_ptr + at, mask=inside, other=0.0).to(tl.float32)
        grad_x = grad * gate0
        sum0 += tl.sum(grad * x, 0)
        if COUNT > 1:
            grad_x, sum1 = _add_head(grad_x, sum1, grad1_ptr, at, inside, x, gate1)
        if COUNT > 2:
            grad_x, sum2 = _add_head(grad_x, sum2, grad2_ptr, at, inside, x, gate2)
        if COUNT > 3:
            grad_x, sum3 = _add_head(grad_x, sum3, grad3_ptr, at, inside, x, gate3)
        if FIRST > 0:
            grad_x += tl.load(grad_x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x_ptr + at, grad_x.to(grad_x_ptr.dtype.element_ty), mask=inside)
    tl.store(partial_ptr, sum0, mask=c < C)
    tl.store(partial_ptr + C, sum1, mask=(c < C) & (COUNT > 1))
    tl.store(partial_ptr + 2 * C, sum2, mask=(c < C) & (COUNT > 2))
    tl.store(partial_ptr + 3 * C, sum3, mask=(c < C) & (COUNT > 3))


@triton.jit
def _add_pooled_kernel(
    grad_x_ptr, grad_pooled_ptr, pixels, C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    image = tl.program_id(1)
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (p < pixels) & (c < C)[None, :]
    grad_x_ptr += (image.to(tl.int64) * pixels + p) * C + c[None, :]
    grad_pooled = tl.load(grad_pooled_ptr + image * C + c, mask=c < C, other=0.0) / pixels
    total = tl.load(grad_x_ptr, mask=inside, other=0.0).to(tl.float32) + grad_pooled[None, :]
    tl.store(grad_x_ptr, total.to(grad_x_ptr.dtype.element_ty), mask=inside)
