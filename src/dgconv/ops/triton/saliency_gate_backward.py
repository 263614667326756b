"""The way back through saliency generator and gate as Triton kernels: three launches. Names are those of saliency_gate.

    grad = grad_gates where kept, + grad_saliency, 0 where the last ReLU was        [B, H, C]
    grad_hidden = W2[h]^T grad, 0 where hidden was                                  [B, H, D]
    grad_pooled = sum over the heads of W1[h]^T grad_hidden                         [B, C]
    grad_W1[h] = sum_b grad_hidden pooled^T,  grad_W2[h] = sum_b grad hidden^T,  grad_beta[h] = sum_b grad

Everything in float32; sums go in a fixed order, no atomics.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from .matrix import _matmul, _store_tile
from .saliency_gate import PRECISION, ROWS, _all_channels, _hidden_block, _warps

TILE = 16384  # elements that 256 threads hold in registers
PROGRAMS = 128  # about one a multiprocessor


@triton.jit
def _saliency_grad(
    grad_gates_ptr, grad_saliency_ptr, saliency_ptr, kept_ptr, at, inside, SIGNED: tl.constexpr, BOTH: tl.constexpr
):  # fmt: skip
    """Gradient of the generator's last sum, before its ReLU."""
    kept = tl.load(kept_ptr + at, mask=inside, other=0)
    grad = tl.where(kept != 0, tl.load(grad_gates_ptr + at, mask=inside, other=0.0), 0.0)
    if BOTH:
        grad += tl.load(grad_saliency_ptr + at, mask=inside, other=0.0)
    if not SIGNED:
        grad = tl.where(tl.load(saliency_ptr + at, mask=inside, other=0.0) <= 0, 0.0, grad)
    return grad


@triton.jit(do_not_specialize=["width"])
def _grad_hidden_kernel(
    grad_gates_ptr, grad_saliency_ptr, saliency_ptr, kept_ptr, hidden_ptr, weight2_ptr, grad_hidden_ptr,
    batch, heads, channels, width,
    IMAGES: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, SIGNED: tl.constexpr, BOTH: tl.constexpr,
):  # fmt: skip
    """grad_hidden[b, h, d] = sum_c grad[b, h, c] W2[h, c, d], where hidden > 0."""
    head, first = tl.program_id(0), tl.program_id(1) * IMAGES
    image, d = first + tl.arange(0, IMAGES), tl.arange(0, BLOCK_D)
    weight2_ptr += head * channels * width
    products = tl.zeros([IMAGES, BLOCK_C, BLOCK_D], tl.float32)
    for start in range(0, channels, BLOCK_C):
        c = start + tl.arange(0, BLOCK_C)
        real = (c < channels)[None, :, None]
        grad_at = (image * heads + head)[:, None, None] * channels + c[None, :, None]
        weight_at = c[None, :, None] * width + d[None, None, :]
        grad = _saliency_grad(
            grad_gates_ptr, grad_saliency_ptr, saliency_ptr, kept_ptr,
            grad_at, (image < batch)[:, None, None] & real, SIGNED, BOTH,
        )  # fmt: skip
        products += grad * tl.load(weight2_ptr + weight_at, mask=real & (d < width)[None, None, :], other=0.0)
    at = (image * heads + head)[:, None] * width + d[None, :]
    inside = (image < batch)[:, None] & (d < width)[None, :]
    hidden = tl.load(hidden_ptr + at, mask=inside, other=0.0)
    tl.store(grad_hidden_ptr + at, tl.where(hidden <= 0, 0.0, tl.sum(products, 1)), mask=inside)


@triton.jit(do_not_specialize=["width"])
def _parameter_grads_kernel(
    grad_gates_ptr, grad_saliency_ptr, saliency_ptr, kept_ptr, hidden_ptr, grad_hidden_ptr, pooled_ptr,
    grad_weight1_ptr, grad_weight2_ptr, grad_bias_ptr, batch, heads, channels, width,
    BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, SIGNED: tl.constexpr, BOTH: tl.constexpr,
):  # fmt: skip
    """Gradients of one head's parameters, for a block of channels: sums over the batch."""
    head, c = tl.program_id(1), tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    real = (c < channels)[None, :]
    d = tl.arange(0, BLOCK_D)
    grad_weight1 = tl.zeros([BLOCK_D, BLOCK_C], tl.float32)
    grad_weight2 = tl.zeros([BLOCK_C, BLOCK_D], tl.float32)
    grad_bias = tl.zeros([BLOCK_C], tl.float32)
    for start in range(0, batch, BLOCK_K):
        image = start + tl.arange(0, BLOCK_K)
        row, in_batch = (image * heads + head)[:, None], (image < batch)[:, None]  # row of [B*H, ...]
        grad = _saliency_grad(
            grad_gates_ptr, grad_saliency_ptr, saliency_ptr, kept_ptr,
            row * channels + c[None, :], in_batch & real, SIGNED, BOTH,
        )  # fmt: skip
        pooled = tl.load(pooled_ptr + image[:, None] * channels + c[None, :], mask=in_batch & real, other=0.0)
        units, in_units = row * width + d[None, :], in_batch & (d < width)[None, :]
        hidden = tl.load(hidden_ptr + units, mask=in_units, other=0.0)
        grad_hidden = tl.load(grad_hidden_ptr + units, mask=in_units, other=0.0)
        grad_weight1 = tl.dot(tl.trans(grad_hidden), pooled, grad_weight1, input_precision=PRECISION)
        grad_weight2 = tl.dot(tl.trans(grad), hidden, grad_weight2, input_precision=PRECISION)
        grad_bias += tl.sum(grad, 0)
    _store_tile(grad_weight1_ptr + head * width * channels, grad_weight1, d, c, width, channels)
    _store_tile(grad_weight2_ptr + head * channels * width, grad_weight2, c, d, channels, width)
    tl.store(grad_bias_ptr + head * channels + c, grad_bias, mask=c < channels)


@triton.jit(do_not_specialize=["units"])
def _grad_pooled_kernel(
    grad_hidden_ptr, weight1_ptr, grad_pooled_ptr, batch, channels, units, BLOCK_K: tl.constexpr, BLOCK_C: tl.constexpr
):
    """grad_pooled[b, c] = sum over the hidden units u of all heads of grad_hidden[b, u] W1[u, c], of ROWS images."""
    b, c = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    grad_pooled = _matmul(grad_hidden_ptr, weight1_ptr, b, c, batch, units, units, channels, BLOCK_K, PRECISION)
    _store_tile(grad_pooled_ptr, grad_pooled, b, c, batch, channels)


def _tile(batch: int, heads: int, channels: int, width: int) -> tuple[int, int, int]:
    """Images a program, and the block sizes of C and D."""
    images = 1  # small weights are soon read; large ones should serve several images
    while channels * width > 4096 and images < 4 and batch * heads > PROGRAMS * images:
        images *= 2
    block_d = _hidden_block(width)
    tile = TILE if block_d <= 64 else TILE // 2
    return images, min(_all_channels(channels), tile // (images * block_d)), block_d


class Backward:
    """The gradients, one after another: what x waits for first, the parameters' whenever there is time.

    ``grad_saliency`` comes from losses on the saliency itself.
    """

    def __init__(
        self, grad_gates: Tensor, grad_saliency: Tensor | None, saliency: Tensor, kept: Tensor, hidden: Tensor,
        pooled: Tensor, weight1: Tensor, weight2: Tensor, signed: bool,
    ) -> None:  # fmt: skip
        grad_gates = grad_gates.contiguous()
        self.options = signed, grad_saliency is not None
        grad_saliency = grad_gates if grad_saliency is None else grad_saliency.contiguous()
        self.grads = (grad_gates, grad_saliency, saliency, kept, hidden)
        self.pooled, self.weight1 = pooled, weight1.contiguous()
        self.batch, (self.heads, self.width, self.channels) = pooled.shape[0], weight1.shape
        sizes = self.batch, self.heads, self.channels, self.width
        images, block_c, self.block_d = _tile(*sizes)
        self.block_k, self.warps = 32 if self.block_d <= 128 else 16, 4 if self.block_d < 64 else 8
        self.grad_hidden = torch.empty_like(hidden)
        _grad_hidden_kernel[(self.heads, triton.cdiv(self.batch, images))](
            *self.grads, weight2.contiguous(), self.grad_hidden, *sizes,
            images, block_c, self.block_d, *self.options, num_warps=_warps(self.channels),
        )  # fmt: skip

    def of_pooled(self) -> Tensor:
        grad_pooled = torch.empty_like(self.pooled)
        grid = triton.cdiv(self.channels, 32), triton.cdiv(self.batch, ROWS.value)
        _grad_pooled_kernel[grid](
            self.grad_hidden, self.weight1, grad_pooled, self.batch, self.channels, self.heads * self.width,
            self.block_k, 32, num_warps=self.warps,
        )  # fmt: skip
        return grad_pooled

    def of_parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """weight1, weight2 and bias."""
        new, (heads, width, channels) = self.pooled.new_empty, self.weight1.shape
        grads = new(heads, width, channels), new(heads, channels, width), new(heads, channels)
        _parameter_grads_kernel[(triton.cdiv(channels, 32), heads)](
            *self.grads, self.grad_hidden, self.pooled, *grads, self.batch, heads, channels, width,
            self.block_k, 32, self.block_d, *self.options, num_warps=self.warps,
        )  # fmt: skip
        return grads

    @property
    def read(self) -> tuple[Tensor, ...]:
        """What the parameters' gradients are made from."""
        return *self.grads, self.grad_hidden, self.pooled


def backward(
    grad_gates: Tensor, grad_saliency: Tensor | None, saliency: Tensor, kept: Tensor, hidden: Tensor, pooled: Tensor,
    weight1: Tensor, weight2: Tensor, signed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of pooled, weight1, weight2 and bias."""
    going_back = Backward(grad_gates, grad_saliency, saliency, kept, hidden, pooled, weight1, weight2, signed)
    return going_back.of_pooled(), *going_back.of_parameters()
