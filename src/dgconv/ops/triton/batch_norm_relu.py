"""Batch normalization followed by ReLU, in one or two launches; its way back is batch_norm_relu_backward.

With m and v the mean and the biased variance of a channel over (B, H, W), N = B·H·W elements:

    x̂ = (x - m) · invstd,   invstd = 1 / √(v + ε),   z = γ·x̂ + β,   y = max(z, 0)

The images of x must be contiguous, but may lie apart, as the first channels of a wider tensor do.

A channel that fits the registers of one program (N ≤ `RESIDENT_ELEMENTS`) takes one launch. A larger one is cut into
chunks of images and pixels: a first launch writes each chunk's partial sums, and every program of the second merges
its channel's partial sums (a short vector) before it applies them. Sums run in a fixed order, without atomics. The
variance is merged from the chunks' own means and squared deviations (Chan et al.), so a large mean costs no digits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

RESIDENT_ELEMENTS = 16384  # elements of one channel that one program holds
CHUNK_ELEMENTS = 2048  # elements of a chunk otherwise: 16 a thread at 4 warps
MAX_CHUNKS = 128  # partial sums of a channel, before chunks grow instead: up to
MAX_CHUNK_ELEMENTS = 8192


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """y = relu(batch_norm(x)) with batch statistics; also the mean and invstd [C] that the way back needs.

    Last the means [B, C] of y over the pixels, in float32, where they come for nothing: a gate may ask for them.
    Updates `running_mean` and `running_var` (unbiased) in place, as `nn.BatchNorm2d` does.
    """
    batch, channels, pixels = _check(x, weight, bias, running_mean, running_var)
    if batch * pixels == 1:
        raise ValueError("batch statistics need more than one value per channel")
    y, stride = x.new_empty(x.shape), x.stride(0)
    pooled = x.new_empty((batch, channels), dtype=torch.float32)
    mean, invstd = torch.empty_like(weight), torch.empty_like(weight)
    vectors = (weight, bias, running_mean, running_var, mean, invstd)
    sizes = (batch, channels, pixels)
    if resident := _resident_block(batch, pixels, per_thread=32):
        _forward_resident_kernel[(channels,)](x, stride, y, pooled, *vectors, momentum, eps, *sizes, **resident)
        return y, mean, invstd, pooled
    blocks, chunks = _chunk_block(batch, pixels)
    partial = x.new_empty((3, channels, chunks), dtype=torch.float32)
    grid = (channels, chunks)
    whole = blocks["BLOCK_P"] >= pixels  # a chunk holds whole images
    _moments_kernel[grid](x, stride, partial, *sizes, chunks, **blocks)
    _normalize_kernel[grid](
        x, stride, y, pooled, partial, *vectors, momentum, eps, *sizes, chunks, **blocks,
        CHUNKS=triton.next_power_of_2(chunks), POOLS=whole,
    )  # fmt: skip
    return y, mean, invstd, pooled if whole else None


def forward_eval(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> tuple[Tensor, Tensor | None]:
    """y = relu(batch_norm(x)) with the running statistics, and the means of y as `forward` gives them."""
    batch, channels, pixels = _check(x, weight, bias, running_mean, running_var)
    y, pooled = x.new_empty(x.shape), x.new_empty((batch, channels), dtype=torch.float32)
    blocks, chunks = _chunk_block(batch, pixels)
    whole = blocks["BLOCK_P"] >= pixels
    _eval_kernel[(channels, chunks)](
        x, x.stride(0), y, pooled, weight, bias, running_mean, running_var, eps, batch, channels, pixels,
        **blocks, POOLS=whole,
    )  # fmt: skip
    return y, pooled if whole else None


def _check(x: Tensor, *vectors: Tensor) -> tuple[int, int, int]:
    """Sizes (B, C, H·W) of x, after a check of what the kernels take for granted."""
    batch, channels, pixels = x.shape[0], x.shape[1], x.shape[2:].numel()
    if not (x.numel() > 0 and x[:1].is_contiguous() and x.stride(0) * batch < 2**31):
        raise ValueError(f"x must be contiguous images (NCHW) within 2^31 - 1 elements, got {tuple(x.shape)}")
    for vector in vectors:
        if vector.shape != (channels,) or vector.dtype != torch.float32 or not vector.is_contiguous():
            raise ValueError(f"weight, bias and statistics must be contiguous float32 vectors of {channels} channels")
    return batch, channels, pixels


def _resident_block(batch: int, pixels: int, per_thread: int) -> dict[str, int] | None:
    """Images, pixels and warps of a program that holds a whole channel, or None where a channel is too large."""
    block_b, block_p = triton.next_power_of_2(batch), triton.next_power_of_2(pixels)
    if block_b * block_p > RESIDENT_ELEMENTS:
        return None
    warps = min(32, max(4, block_b * block_p // (32 * per_thread)))
    return {"BLOCK_B": block_b, "BLOCK_P": block_p, "num_warps": warps}


def _chunk_block(batch: int, pixels: int) -> tuple[dict[str, int], int]:
    """Images and pixels of a chunk, and the number of chunks of a channel."""
    elements = CHUNK_ELEMENTS
    while True:
        block_p = min(triton.next_power_of_2(pixels), elements)
        block_b = min(triton.next_power_of_2(batch), elements // block_p)
        chunks = triton.cdiv(batch, block_b) * triton.cdiv(pixels, block_p)
        if chunks <= MAX_CHUNKS or elements >= MAX_CHUNK_ELEMENTS:
            return {"BLOCK_B": block_b, "BLOCK_P": block_p}, chunks
        elements *= 2


@triton.jit
def _tile(channel, chunk, B, P, stride, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr):
    """Offsets [BLOCK_B, BLOCK_P] into a tensor [B, C, P] whose images lie `stride` apart, and their mask."""
    across = tl.cdiv(P, BLOCK_P)
    b = chunk // across * BLOCK_B + tl.arange(0, BLOCK_B)[:, None]
    p = chunk % across * BLOCK_P + tl.arange(0, BLOCK_P)[None, :]
    return b * stride + channel * P + p, (b < B) & (p < P)


@triton.jit
def _count(chunk, B, P, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr):
    """How many elements of a tile are there."""
    across = tl.cdiv(P, BLOCK_P)
    rows = tl.minimum(BLOCK_B, B - chunk // across * BLOCK_B)
    return (rows * tl.minimum(BLOCK_P, P - chunk % across * BLOCK_P)).to(tl.float32)


@triton.jit
def _store_means(pooled_ptr, y, mask, channel, chunk, B, C, P, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr):
    """Stores the mean of each image of a tile [BLOCK_B, BLOCK_P] that holds whole images."""
    b = chunk // tl.cdiv(P, BLOCK_P) * BLOCK_B + tl.arange(0, BLOCK_B)
    means = tl.sum(tl.where(mask, y.to(tl.float32), 0.0), 1) / P
    tl.store(pooled_ptr + b * C + channel, means, mask=b < B)


@triton.jit
def _moments(x, mask, count):
    """Mean and sum of squared deviations of a tile."""
    mean = tl.sum(x) / count  # masked elements are loaded as 0
    deviation = tl.where(mask, x - mean, 0.0)
    return mean, tl.sum(deviation * deviation)


@triton.jit
def _normalize(x, mean, invstd, weight, bias):
    return tl.maximum((x - mean) * (invstd * weight) + bias, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _keep_statistics(
    channel, mean, var, invstd, count, momentum, running_mean_ptr, running_var_ptr, mean_ptr, invstd_ptr
):
    tl.store(mean_ptr + channel, mean)
    tl.store(invstd_ptr + channel, invstd)
    old_mean, old_var = tl.load(running_mean_ptr + channel), tl.load(running_var_ptr + channel)
    tl.store(running_mean_ptr + channel, old_mean + momentum * (mean - old_mean))
    tl.store(running_var_ptr + channel, old_var + momentum * (var * (count / (count - 1.0)) - old_var))


@triton.jit(do_not_specialize=["B", "C"])
def _forward_resident_kernel(
    x_ptr, x_stride, y_ptr, pooled_ptr,
    weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, mean_ptr, invstd_ptr,
    momentum, eps, B, C, P, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """One program a channel: statistics and output from registers."""
    channel = tl.program_id(0)
    count = (B * P).to(tl.float32)
    x_offsets, mask = _tile(channel, 0, B, P, x_stride, BLOCK_B, BLOCK_P)
    x = tl.load(x_ptr + x_offsets, mask=mask, other=0.0).to(tl.float32)
    weight, bias = tl.load(weight_ptr + channel), tl.load(bias_ptr + channel)
    mean, squares = _moments(x, mask, count)
    var = squares / count
    invstd = 1.0 / tl.sqrt(var + eps)
    y = _normalize(x, mean, invstd, weight, bias).to(y_ptr.dtype.element_ty)
    offsets, _ = _tile(channel, 0, B, P, C * P, BLOCK_B, BLOCK_P)
    tl.store(y_ptr + offsets, y, mask=mask)
    _store_means(pooled_ptr, y, mask, channel, 0, B, C, P, BLOCK_B, BLOCK_P)
    _keep_statistics(
        channel, mean, var, invstd, count, momentum, running_mean_ptr, running_var_ptr, mean_ptr, invstd_ptr
    )


@triton.jit(do_not_specialize=["B", "C", "chunks"])
def _moments_kernel(x_ptr, x_stride, partial_ptr, B, C, P, chunks, BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr):
    """partial [3, C, chunks]: each chunk's mean, squared deviations and number of elements."""
    channel, chunk = tl.program_id(0), tl.program_id(1)
    offsets, mask = _tile(channel, chunk, B, P, x_stride, BLOCK_B, BLOCK_P)
    count = _count(chunk, B, P, BLOCK_B, BLOCK_P)
    mean, squares = _moments(tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32), mask, count)
    partial_ptr += channel * chunks + chunk
    tl.store(partial_ptr, mean)
    tl.store(partial_ptr + C * chunks, squares)
    tl.store(partial_ptr + 2 * C * chunks, count)


@triton.jit(do_not_specialize=["B", "C", "chunks"])
def _normalize_kernel(
    x_ptr, x_stride, y_ptr, pooled_ptr, partial_ptr,
    weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, mean_ptr, invstd_ptr, momentum, eps, B, C, P, chunks,
    BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr, CHUNKS: tl.constexpr, POOLS: tl.constexpr,
):  # fmt: skip
    """Merges the channel's partial moments, then normalizes one chunk."""
    channel, chunk = tl.program_id(0), tl.program_id(1)
    x_offsets, mask = _tile(channel, chunk, B, P, x_stride, BLOCK_B, BLOCK_P)
    x = tl.load(x_ptr + x_offsets, mask=mask, other=0.0).to(tl.float32)
    weight, bias = tl.load(weight_ptr + channel), tl.load(bias_ptr + channel)
    i = tl.arange(0, CHUNKS)
    partial_ptr += channel * chunks + i
    means = tl.load(partial_ptr, mask=i < chunks, other=0.0)
    squares = tl.load(partial_ptr + C * chunks, mask=i < chunks, other=0.0)
    counts = tl.load(partial_ptr + 2 * C * chunks, mask=i < chunks, other=0.0)
    count = (B * P).to(tl.float32)
    mean = tl.sum(means * counts) / count
    var = tl.sum(squares + counts * (means - mean) * (means - mean)) / count
    invstd = 1.0 / tl.sqrt(var + eps)
    y = _normalize(x, mean, invstd, weight, bias).to(y_ptr.dtype.element_ty)
    offsets, _ = _tile(channel, chunk, B, P, C * P, BLOCK_B, BLOCK_P)
    tl.store(y_ptr + offsets, y, mask=mask)
    if POOLS:
        _store_means(pooled_ptr, y, mask, channel, chunk, B, C, P, BLOCK_B, BLOCK_P)
    if chunk == 0:
        _keep_statistics(
            channel, mean, var, invstd, count, momentum, running_mean_ptr, running_var_ptr, mean_ptr, invstd_ptr
        )


@triton.jit(do_not_specialize=["B", "C"])
def _eval_kernel(
    x_ptr, x_stride, y_ptr, pooled_ptr, weight_ptr, bias_ptr, mean_ptr, var_ptr, eps, B, C, P,
    BLOCK_B: tl.constexpr, BLOCK_P: tl.constexpr, POOLS: tl.constexpr,
):  # fmt: skip
    channel, chunk = tl.program_id(0), tl.program_id(1)
    x_offsets, mask = _tile(channel, chunk, B, P, x_stride, BLOCK_B, BLOCK_P)
    offsets, _ = _tile(channel, chunk, B, P, C * P, BLOCK_B, BLOCK_P)
    x = tl.load(x_ptr + x_offsets, mask=mask, other=0.0).to(tl.float32)
    invstd = 1.0 / tl.sqrt(tl.load(var_ptr + channel) + eps)
    weight, bias = tl.load(weight_ptr + channel), tl.load(bias_ptr + channel)
    y = _normalize(x, tl.load(mean_ptr + channel), invstd, weight, bias).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + offsets, y, mask=mask)
    if POOLS:
        _store_means(pooled_ptr, y, mask, channel, chunk, B, C, P, BLOCK_B, BLOCK_P)
