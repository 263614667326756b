"""How a sparse convolution is cut, and what all of its kernels end with."""
# mypy: allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from .saliency_gate import _relu

Way = Literal["packed", "gathered", "folded", "gated"]
ACTIVATIONS = {"identity": 0, "relu": 1, "relu6": 2}


@dataclass(frozen=True)
class Tile:
    """Pixels, outputs and K of a product, and where it has its factors from.

    packed: the kept channels times their gates, copied side by side before. gathered: the kept channels, value by value
    from the input. folded: all channels, and each image has its own weights, copied before, zeros where nothing is
    kept. gated: the same, but the gates are multiplied into the weights as they are read.

    Args:
        stages: with 1, inputs are read through the first cache, where neighbouring taps find them again; with more,
            they are fetched ahead, past it.
        split: programs that share the K of a tile; the last to arrive adds up. For few pixels.
    """

    pixels: int
    outputs: int
    depth: int
    way: Way = "packed"
    warps: int = 4
    stages: int = 3
    split: int = 1

    @property
    def options(self) -> dict[str, int]:
        """As kernels name them."""
        blocks = {"BLOCK_M": self.pixels, "BLOCK_N": self.outputs, "BLOCK_K": self.depth, "SPLIT": self.split}
        return blocks | {"num_warps": self.warps, "num_stages": self.stages}


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

    @property
    def options(self) -> dict[str, int]:
        """As kernels name them."""
        return {"KERNEL": self.kernel, "STRIDE": self.stride, "PADDING": self.padding}

    def output(self, size: int) -> int:
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


def make_results(
    x: Tensor, outputs: int, geometry: Geometry, tile: Tile, with_sums: bool
) -> tuple[Tensor, Tensor | None]:
    """Room for what a convolution makes of x, channels-last, and for its sums over the pixels of each tile."""
    shape = (len(x), outputs, geometry.output(x.shape[2]), geometry.output(x.shape[3]))
    y = torch.empty(shape, device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
    tiles = triton.cdiv(shape[2] * shape[3], tile.pixels)
    sums = torch.empty(len(x), tiles, outputs, device=x.device, dtype=torch.float32) if with_sums else None
    return y, sums


@triton.jit
def _activate(x, KIND: tl.constexpr):
    if KIND > 0:
        x = _relu(x)
    if KIND == 2:
        x = tl.where(x > 6.0, 6.0, x)
    return x


@triton.jit
def _is_last(
    total, parts_ptr, arrivals_ptr, unit, part, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Leaves a part of tile ``unit`` for whoever arrives last."""
    at = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(parts_ptr + (unit.to(tl.int64) * SPLIT + part) * (BLOCK_M * BLOCK_N) + at, total)
    tl.debug_barrier()  # all threads have stored before one of them says so
    return tl.atomic_add(arrivals_ptr + unit, 1) == SPLIT - 1


@triton.jit
def _sum_of_parts(parts_ptr, unit, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """In a fixed order, whoever came last."""
    at = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for part in tl.static_range(SPLIT):
        place = (unit.to(tl.int64) * SPLIT + part) * (BLOCK_M * BLOCK_N)
        total += tl.load(parts_ptr + place + at, cache_modifier=".cg")
    return total


@triton.jit
def _finish(
    total, pixel, channel, is_output, bias_ptr, residual_ptr, y_ptr, sums_ptr, image, tile,
    PIXELS: tl.constexpr, TOTAL: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr, SUMS: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Stores activation(total + bias + residual) and its sums over the tile's pixels."""
    is_pixel = pixel < PIXELS
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=is_output, other=0.0)[None, :]
    at = image.to(tl.int64) * (PIXELS * TOTAL) + (pixel * TOTAL)[:, None] + channel[None, :]
    exists = is_pixel[:, None] & is_output[None, :]
    if RESIDUAL:
        total += tl.load(residual_ptr + at, mask=exists, other=0.0).to(tl.float32)
    result = _activate(total, ACTIVATION).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + at, result, mask=exists)
    if SUMS:
        part = tl.sum(tl.where(is_pixel[:, None], result.to(tl.float32), 0.0), 0)
        tl.store(sums_ptr + (image * tl.num_programs(0) + tile) * TOTAL + channel, part, mask=is_output)
