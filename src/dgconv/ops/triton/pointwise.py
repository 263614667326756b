"""The 1x1 dynamic group convolution as Triton kernels, the gates folded into the weight.

    folded[b, o, c] = W[o, c] g[b, o % H, c]                                     by the gate's kernel
    out[b, o] = sum_c folded[b, o, c] x[b, c]                                    one launch
    grad_x[b, c] = sum_o folded[b, o, c] grad[b, o]  (+ grad_pooled[b, c] / P)   one launch
    F[b, o, c] = sum_p grad[b, o, p] x[b, c, p]     never written out; from it, in one launch and a sum of parts,
    grad_W[o, c] = sum_b F[b, o, c] g[b, o % H, c]
    grad_g[b, h, c] = sum of F[b, o, c] W[o, c] over the outputs o of head h

x is [B, C, P], contiguous, in bfloat16, float16 or float32, and so is the result; W is [C', C], g is [B, H, C].
Sums are float32 and go in a fixed order: each program writes its own part, a second kernel adds the parts.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import precision
from .matrix import _load_tile, _matmul, _store_tile

PROGRAMS = 264  # two a multiprocessor of an H200; one where a program has little to sum


@triton.jit
def _load_gates(gates_ptr, o, c, outputs, channels, HEADS: tl.constexpr):
    """The gates of one image by output channel: g[o % H, c]."""
    inside = (o < outputs)[:, None] & (c < channels)[None, :]
    return tl.load(gates_ptr + (o % HEADS)[:, None] * channels + c[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["channels"])
def _forward_kernel(
    x_ptr, folded_ptr, out_ptr, channels, outputs, pixels, width,
    BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile [BLOCK_O, BLOCK_P] of one image's output."""
    image = tl.program_id(2).to(tl.int64)
    x_ptr += image * channels * pixels
    folded_ptr += image * outputs * width
    out_ptr += image * outputs * pixels
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    total = _matmul(folded_ptr, x_ptr, o, p, outputs, width, channels, pixels, BLOCK_C, PRECISION)
    _store_tile(out_ptr, total, o, p, outputs, pixels)


@triton.jit(do_not_specialize=["channels"])
def _grad_x_kernel(
    grad_ptr, folded_ptr, grad_pooled_ptr, grad_x_ptr, channels, outputs, pixels, width,
    BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, POOLED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile [BLOCK_C, BLOCK_P] of one image's grad_x."""
    image = tl.program_id(2).to(tl.int64)
    grad_ptr += image * outputs * pixels
    folded_ptr += image * outputs * width
    grad_x_ptr += image * channels * pixels
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    total = _matmul(folded_ptr, grad_ptr, c, p, width, outputs, outputs, pixels, BLOCK_O, PRECISION, True)
    if POOLED:
        grad_pooled = tl.load(grad_pooled_ptr + image * channels + c, mask=c < channels, other=0.0)
        total += (grad_pooled / pixels)[:, None]
    _store_tile(grad_x_ptr, total, c, p, channels, pixels)


@triton.jit
def _product(total, grad_ptr, x_ptr, o, c, p, outputs, channels, pixels, PRECISION: tl.constexpr):
    """total[o, c] + sum over the pixels p of grad[o, p] x[c, p]."""
    grad = _load_tile(grad_ptr, o, p, outputs, pixels)
    x = _load_tile(x_ptr, c, p, channels, pixels)
    return tl.dot(grad, tl.trans(x), total, input_precision=PRECISION)


@triton.jit
def _grad_parts_kernel(
    grad_ptr, x_ptr, weight_ptr, gates_ptr, weight_parts_ptr, gates_parts_ptr,
    batch, channels, outputs, pixels, images,
    HEADS: tl.constexpr, GROUP: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
    ONE_STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``images`` images of a tile [BLOCK_O, BLOCK_C]: their part of grad_W, and the tile's part of their grad_g.

    Row i*GROUP + h of the tiles is output i*H + h, GROUP being H rounded up to a power of two: so the sum over the
    outputs of a head is a sum over i, for any H.
    """
    chunk, tile = tl.program_id(1), tl.program_id(2)
    row = tile * BLOCK_O + tl.arange(0, BLOCK_O)
    o = tl.where(row % GROUP < HEADS, row // GROUP * HEADS + row % GROUP, outputs)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    head = tl.arange(0, GROUP)
    weight = _load_tile(weight_ptr, o, c, outputs, channels).to(tl.float32)
    grad_weight = tl.zeros([BLOCK_O, BLOCK_C], tl.float32)
    for index in range(chunk * images, tl.minimum((chunk + 1) * images, batch)):
        image = tl.cast(index, tl.int64)
        image_grad_ptr, image_x_ptr = grad_ptr + image * outputs * pixels, x_ptr + image * channels * pixels
        p = tl.arange(0, BLOCK_P)
        folded = tl.zeros([BLOCK_O, BLOCK_C], tl.float32)  # F
        if ONE_STEP:  # no inner loop: then the loads of the next image go ahead of this one
            folded = _product(folded, image_grad_ptr, image_x_ptr, o, c, p, outputs, channels, pixels, PRECISION)
        else:
            for start in range(0, pixels, BLOCK_P):
                at = start + p
                folded = _product(folded, image_grad_ptr, image_x_ptr, o, c, at, outputs, channels, pixels, PRECISION)
        grad_weight += folded * _load_gates(gates_ptr + image * HEADS * channels, o, c, outputs, channels, HEADS)
        grad_gates = tl.sum(tl.reshape(folded * weight, [BLOCK_O // GROUP, GROUP, BLOCK_C]), 0)  # [GROUP, BLOCK_C]
        gates_at = ((tile * batch + image) * HEADS + head)[:, None] * channels + c[None, :]
        tl.store(gates_parts_ptr + gates_at, grad_gates, mask=(head < HEADS)[:, None] & (c < channels)[None, :])
    _store_tile(weight_parts_ptr + chunk * outputs * channels, grad_weight, o, c, outputs, channels)


@triton.jit
def _sum_kernel(parts_ptr, total_ptr, count, size, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr):
    """total[i] = sum over n of parts[n, i]."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK_N, BLOCK], tl.float32)
    for start in range(0, count, BLOCK_N):
        total += _load_tile(parts_ptr, start + tl.arange(0, BLOCK_N).to(tl.int64), i, count, size)
    tl.store(total_ptr + i, tl.sum(total, 0), mask=i < size)


def sum_parts(parts: Tensor) -> Tensor:
    """Sum over the first dimension."""
    if parts.shape[0] == 1:
        return parts[0]
    total = parts.new_empty(parts.shape[1:])
    _sum_kernel[(triton.cdiv(total.numel(), 128),)](parts, total, parts.shape[0], total.numel(), 16, 128)
    return total


def _block(size: int, most: int) -> int:
    """The power of two that holds ``size``, from 16, the least a matrix product takes, to ``most``."""
    return min(max(16, triton.next_power_of_2(size)), most)


def _tile(rows: int, inner: int, pixels: int) -> tuple[int, int, int]:
    """Blocks of a product [rows, inner] x [inner, pixels]; enough programs for batches of some dozen images."""
    return _block(rows, 64), _block(inner, 32), _block(pixels, 128 if pixels >= 256 else 64)


def forward(x: Tensor, folded: Tensor) -> Tensor:
    """``x`` [B, C, P] and ``folded`` [B, C', C rounded up to 16s] to out [B, C', P]."""
    batch, channels, pixels = x.shape
    outputs, width = folded.shape[1:]
    out = x.new_empty(batch, outputs, pixels)
    block_o, block_c, block_p = _tile(outputs, width, pixels)
    _forward_kernel[(triton.cdiv(outputs, block_o), triton.cdiv(pixels, block_p), batch)](
        x.contiguous(), folded, out, channels, outputs, pixels, width,
        block_o, block_c, block_p, precision.of_products(),
    )  # fmt: skip
    return out


def input_gradient(grad: Tensor, folded: Tensor, channels: int, grad_pooled: Tensor | None = None) -> Tensor:
    """grad_x [B, C, P] from ``grad`` [B, C', P]; ``grad_pooled`` [B, C] adds the gradient of the pooling."""
    batch, outputs, pixels = grad.shape
    grad_x = grad.new_empty(batch, channels, pixels)
    block_c, block_o, block_p = _tile(channels, outputs, pixels)
    _grad_x_kernel[(triton.cdiv(channels, block_c), triton.cdiv(pixels, block_p), batch)](
        grad.contiguous(), folded, folded if grad_pooled is None else grad_pooled.contiguous(), grad_x,
        channels, outputs, pixels, folded.shape[2], block_o, block_c, block_p, grad_pooled is not None,
        precision.of_products(),
    )  # fmt: skip
    return grad_x


def parameter_gradients(grad: Tensor, x: Tensor, weight: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """grad_weight in parts [N, C', C], whose sum can wait, and grad_gates [B, H, C], both float32."""
    batch, channels, pixels = x.shape
    outputs, heads = weight.shape[0], gates.shape[1]
    group = triton.next_power_of_2(heads)
    rows = triton.cdiv(outputs, heads) * group
    block_o, block_c = max(_block(rows, 128), group), _block(channels, 32)
    block_p = _block(pixels, 64 if x.dtype == torch.float32 or pixels < 1024 else 128)
    tiles, blocks = triton.cdiv(rows, block_o), triton.cdiv(channels, block_c)
    images = triton.cdiv(batch, min(batch, triton.cdiv(PROGRAMS if pixels > 64 else PROGRAMS // 2, blocks * tiles)))
    chunks = triton.cdiv(batch, images)
    weight_parts = torch.empty(chunks, outputs, channels, device=x.device, dtype=torch.float32)
    gates_parts = torch.empty(tiles, batch, heads, channels, device=x.device, dtype=torch.float32)
    _grad_parts_kernel[(blocks, chunks, tiles)](
        grad.contiguous(), x.contiguous(), weight.contiguous(), gates.contiguous(), weight_parts, gates_parts,
        batch, channels, outputs, pixels, images,
        heads, group, block_o, block_c, block_p, pixels <= block_p, precision.of_products(),
        num_warps=8 if block_o >= 128 else 4,
    )  # fmt: skip
    return weight_parts, sum_parts(gates_parts)


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, gates: Tensor, folded: Tensor, grad_pooled: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and gates. Where grad_pooled hangs on grad_gates, call the two halves in turn."""
    weight_parts, grad_gates = parameter_gradients(grad, x, weight, gates)
    return input_gradient(grad, folded, x.shape[1], grad_pooled), sum_parts(weight_parts), grad_gates
