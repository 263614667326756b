"""The 1x1 group convolution with one weight for all images, on planes, which cuDNN would turn into another layout.

    out[b, g, o, p] = sum_c W[g, o, c] x[b, g, c, p]
    grad_x[b, g, c, p] = sum_o W[g, o, c] grad[b, g, o, p]
    grad_W[g, o, c] = sum_b,p grad[b, g, o, p] x[b, g, c, p]        in parts, one a chunk of images

``interleaved`` shuffles: output o of group g becomes channel o·G + g instead of g·O + o. x is [B, G·C, P], contiguous,
in bfloat16, float16 or float32, and so is the result; W is [G·O, C]. Sums are float32 and go in a fixed order.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import precision
from .matrix import _load_tile, _matmul, _store_tile
from .pointwise import PROGRAMS, _block, _tile


def forward(x: Tensor, weight: Tensor, groups: int, interleaved: bool) -> Tensor:
    batch, channels, outputs, pixels = _sizes(x, weight, groups)
    out = x.new_empty(batch, groups * outputs, pixels)
    block_o, block_c, block_p = _tile(outputs, channels, pixels)
    _forward_kernel[(triton.cdiv(outputs, block_o), triton.cdiv(pixels, block_p), batch * groups)](
        x.contiguous(), weight.contiguous(), out, channels, outputs, pixels, groups,
        block_o, block_c, block_p, interleaved, precision.of_products(),
    )  # fmt: skip
    return out


def input_gradient(grad: Tensor, x: Tensor, weight: Tensor, groups: int, interleaved: bool) -> Tensor:
    batch, channels, outputs, pixels = _sizes(x, weight, groups)
    grad_x = torch.empty_like(x)
    block_c, block_o, block_p = _tile(channels, outputs, pixels)
    _grad_x_kernel[(triton.cdiv(channels, block_c), triton.cdiv(pixels, block_p), batch * groups)](
        grad.contiguous(), weight.contiguous(), grad_x, channels, outputs, pixels, groups,
        block_o, block_c, block_p, interleaved, precision.of_products(),
    )  # fmt: skip
    return grad_x


def weight_gradient_parts(grad: Tensor, x: Tensor, weight: Tensor, groups: int, interleaved: bool) -> Tensor:
    """[N, G·O, C] in float32, whose sum can wait."""
    batch, channels, outputs, pixels = _sizes(x, weight, groups)
    block_o, block_c, block_p = _block(outputs, 64), _block(channels, 64), _block(pixels, 64)
    tiles, blocks = triton.cdiv(outputs, block_o), triton.cdiv(channels, block_c)
    chunks = min(batch, triton.cdiv(PROGRAMS, blocks * tiles * groups))
    images = triton.cdiv(batch, chunks)
    chunks = triton.cdiv(batch, images)
    parts = torch.empty(chunks, groups * outputs, channels, device=x.device, dtype=torch.float32)
    _weight_parts_kernel[(blocks, chunks, tiles * groups)](
        grad.contiguous(), x.contiguous(), parts, batch, channels, outputs, pixels, groups, images,
        block_o, block_c, block_p, interleaved, precision.of_products(),
    )  # fmt: skip
    return parts


def _sizes(x: Tensor, weight: Tensor, groups: int) -> tuple[int, int, int, int]:
    """Batch, channels and outputs of a group, pixels."""
    outputs, channels = weight.shape[0] // groups, weight.shape[1]
    if x.dim() != 3 or weight.shape != (groups * outputs, channels) or x.shape[1] != groups * channels:
        raise ValueError(f"no grouped 1x1: x {tuple(x.shape)}, weight {tuple(weight.shape)}, {groups} groups")
    return x.shape[0], channels, outputs, x.shape[2]


@triton.jit
def _row(o, image, group, groups, outputs, INTERLEAVED: tl.constexpr):
    """Where output o of a group is, among the rows of all images; beyond the last one it may be anywhere."""
    if INTERLEAVED:
        return (image * outputs + o) * groups + group
    else:
        return (image * groups + group) * outputs + o


@triton.jit
def _load_outputs(ptr, o, p, image, group, groups, outputs, pixels, INTERLEAVED: tl.constexpr):
    """``[o, p]`` of one image and group, zero outside of it."""
    inside = (o < outputs)[:, None] & (p < pixels)[None, :]
    row = _row(o, image, group, groups, outputs, INTERLEAVED)
    return tl.load(ptr + row[:, None] * pixels + p[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["channels", "groups"])
def _forward_kernel(
    x_ptr, weight_ptr, out_ptr, channels, outputs, pixels, groups,
    BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, INTERLEAVED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile [BLOCK_O, BLOCK_P] of one image and group."""
    place = tl.program_id(2).to(tl.int64)
    image, group = place // groups, place % groups
    x_ptr += place * channels * pixels
    weight_ptr += group * outputs * channels
    o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    total = _matmul(weight_ptr, x_ptr, o, p, outputs, channels, channels, pixels, BLOCK_C, PRECISION)
    inside = (o < outputs)[:, None] & (p < pixels)[None, :]
    row = _row(o, image, group, groups, outputs, INTERLEAVED)
    tl.store(out_ptr + row[:, None] * pixels + p[None, :], total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["channels", "groups"])
def _grad_x_kernel(
    grad_ptr, weight_ptr, grad_x_ptr, channels, outputs, pixels, groups,
    BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, INTERLEAVED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile [BLOCK_C, BLOCK_P] of one image and group."""
    place = tl.program_id(2).to(tl.int64)
    image, group = place // groups, place % groups
    weight_ptr += group * outputs * channels
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    total = tl.zeros([BLOCK_C, BLOCK_P], tl.float32)
    for start in range(0, outputs, BLOCK_O):
        o = start + tl.arange(0, BLOCK_O)
        grad = _load_outputs(grad_ptr, o, p, image, group, groups, outputs, pixels, INTERLEAVED)
        weight = _load_tile(weight_ptr, o, c, outputs, channels).to(grad.dtype)
        total = tl.dot(tl.trans(weight), grad, total, input_precision=PRECISION)
    _store_tile(grad_x_ptr + place * channels * pixels, total, c, p, channels, pixels)


@triton.jit(do_not_specialize=["channels", "groups"])
def _weight_parts_kernel(
    grad_ptr, x_ptr, parts_ptr, batch, channels, outputs, pixels, groups, images,
    BLOCK_O: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, INTERLEAVED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """What ``images`` images add to a tile [BLOCK_O, BLOCK_C] of a group's grad_W."""
    chunk, group = tl.program_id(1), tl.program_id(2) % groups
    o = tl.program_id(2) // groups * BLOCK_O + tl.arange(0, BLOCK_O)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_O, BLOCK_C], tl.float32)
    for index in range(chunk * images, tl.minimum((chunk + 1) * images, batch)):
        image = tl.cast(index, tl.int64)
        for start in range(0, pixels, BLOCK_P):
            p = start + tl.arange(0, BLOCK_P)
            grad = _load_outputs(grad_ptr, o, p, image, group, groups, outputs, pixels, INTERLEAVED)
            x = _load_tile(x_ptr + (image * groups + group) * channels * pixels, c, p, channels, pixels)
            total = tl.dot(grad, tl.trans(x), total, input_precision=PRECISION)
    _store_tile(parts_ptr + (chunk * groups + group) * outputs * channels, total, o, c, outputs, channels)
