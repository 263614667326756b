"""The way back through batch normalization and ReLU, in one or two launches. Names are those of batch_norm_relu.

    dz = dy · [z > 0],   dβ = Σ dz,   dγ = Σ dz·x̂,   dx = γ·invstd · (dz - dβ/N - x̂·dγ/N)

Only x, m and invstd are kept from the way forward; the ReLU's mask is computed again. The launches are as there: a
channel that fits the registers of one program takes one, a larger one two, the first of which writes the partial sums
of each chunk. Sums run in a fixed order, without atomics.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from .batch_norm_relu import _check, _chunk_block, _resident_block, _tile


def backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor, more: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (dx, dweight, dbias) of the way forward, from its output's gradient, its input and its statistics.

    `more` is added to dx: the gradient that reaches x on another way. Its images must be contiguous, one by one.
    """
    batch, channels, pixels = _check(x, weight, bias, mean, invstd)
    if dy.shape != x.shape or not dy.is_contiguous():
        raise ValueError(f"dy must be contiguous and of x's shape {tuple(x.shape)}, got {tuple(dy.shape)}")
    if more is not None and (more.shape != x.shape or not more[:1].is_contiguous()):
        raise ValueError(f"more must be of x's shape and its images contiguous, got {tuple(more.shape)}")
    adds = more is not None
    more = dy if more is None else more
    dx, stride = x.new_empty(x.shape), x.stride(0)
    dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
    vectors = (weight, bias, mean, invstd, dweight, dbias)
    sizes = (batch, channels, pixels)
    if resident := _resident_block(batch, pixels, per_thread=16):
        _backward_resident_kernel[(channels,)](
            dy, x, stride, dx, more, more.stride(0), *vectors, *sizes, **resident, ADDS=adds
        )
        return dx, dweight, dbias
    blocks, chunks = _chunk_block(batch, pixels)
    partial = x.new_empty((2, channels, chunks), dtype=torch.float32)
    grid = (channels, chunks)
    _gradient_sums_kernel[grid](dy, x, stride, partial, weight, bias, mean, invstd, *sizes, chunks, **blocks)
    _input_gradient_kernel[grid](
        dy, x, stride, dx, more, more.stride(0), partial, *vectors, *sizes, chunks, **blocks,
        ADDS=adds, CHUNKS=triton.next_power_of_2(chunks),
    )  # fmt: skip
    return dx, dweight, dbias


@triton.jit
def _gradient_tile(
    dy_ptr, x_ptr, x_stride, weight_ptr, bias_ptr, mean_ptr, invstd_ptr, channel, chunk, B, C, P,
    BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """dz and x̂ of a tile, and the channel's γ·invstd; then the tile's offsets in dy and its mask."""
    offsets, mask = _tile(channel, chunk, B, P, C * P, BLOCK_B, BLOCK_P)
    x_offsets, _ = _tile(channel, chunk, B, P, x_stride, BLOCK_B, BLOCK_P)
    dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + x_offsets, mask=mask, other=0.0).to(tl.float32)
    centred = x - tl.load(mean_ptr + channel)
    invstd = tl.load(invstd_ptr + channel)
    scale = invstd * tl.load(weight_ptr + channel)
    active = centred * scale + tl.load(bias_ptr + channel) > 0.0
    return tl.where(active, dy, 0.0), centred * invstd, scale, offsets, mask


@triton.jit(do_not_specialize=["B", "C"])
def _backward_resident_kernel(
    dy_ptr, x_ptr, x_stride, dx_ptr, more_ptr, more_stride, weight_ptr, bias_ptr, mean_ptr, invstd_ptr,
    dweight_ptr, dbias_ptr, B, C, P, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """One program a channel: sums and input gradient from registers."""
    channel = tl.program_id(0)
    count = (B * P).to(tl.float32)
    dz, xhat, scale, offsets, mask = _gradient_tile(
        dy_ptr, x_ptr, x_stride, weight_ptr, bias_ptr, mean_ptr, invstd_ptr, channel, 0, B, C, P, BLOCK_B, BLOCK_P
    )
    dbias, dweight = tl.sum(dz), tl.sum(dz * xhat)
    dx = scale * (dz - dbias / count - xhat * (dweight / count))
    if ADDS:
        more_offsets, _ = _tile(channel, 0, B, P, more_stride, BLOCK_B, BLOCK_P)
        dx += tl.load(more_ptr + more_offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    tl.store(dweight_ptr + channel, dweight)
    tl.store(dbias_ptr + channel, dbias)


@triton.jit(do_not_specialize=["B", "C", "chunks"])
def _gradient_sums_kernel(
    dy_ptr, x_ptr, x_stride, partial_ptr, weight_ptr, bias_ptr, mean_ptr, invstd_ptr,
    B, C, P, chunks, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """partial [2, C, chunks]: each chunk's Σ dz and Σ dz·x̂."""
    channel, chunk = tl.program_id(0), tl.program_id(1)
    dz, xhat, _, _, _ = _gradient_tile(
        dy_ptr, x_ptr, x_stride, weight_ptr, bias_ptr, mean_ptr, invstd_ptr, channel, chunk, B, C, P, BLOCK_B, BLOCK_P
    )
    partial_ptr += channel * chunks + chunk
    tl.store(partial_ptr, tl.sum(dz))
    tl.store(partial_ptr + C * chunks, tl.sum(dz * xhat))


@triton.jit(do_not_specialize=["B", "C", "chunks"])
def _input_gradient_kernel(
    dy_ptr, x_ptr, x_stride, dx_ptr, more_ptr, more_stride, partial_ptr, weight_ptr, bias_ptr, mean_ptr, invstd_ptr,
    dweight_ptr, dbias_ptr, B, C, P, chunks,
    BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr, ADDS: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Adds the channel's partial sums, then writes one chunk of dx."""
    channel, chunk = tl.program_id(0), tl.program_id(1)
    dz, xhat, scale, offsets, mask = _gradient_tile(
        dy_ptr, x_ptr, x_stride, weight_ptr, bias_ptr, mean_ptr, invstd_ptr, channel, chunk, B, C, P, BLOCK_B, BLOCK_P
    )
    i = tl.arange(0, CHUNKS)
    partial_ptr += channel * chunks + i
    dbias = tl.sum(tl.load(partial_ptr, mask=i < chunks, other=0.0))
    dweight = tl.sum(tl.load(partial_ptr + C * chunks, mask=i < chunks, other=0.0))
    count = (B * P).to(tl.float32)
    dx = scale * (dz - dbias / count - xhat * (dweight / count))
    if ADDS:
        more_offsets, _ = _tile(channel, chunk, B, P, more_stride, BLOCK_B, BLOCK_P)
        dx += tl.load(more_ptr + more_offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
    if chunk == 0:
        tl.store(dweight_ptr + channel, dweight)
        tl.store(dbias_ptr + channel, dbias)
