"""The forms of a convolution that are worth a trial, from which :mod:`.choice` takes the fastest."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ...ops.triton.selection import GateTile
    from ...ops.triton.stem_conv import StemTile
    from ...ops.triton.tiles import Tile

MASKED = "masked"  # the form that computes all channels, those left out as zeros
CUDNN = "cudnn"
PROCESSORS = 132
MOST_FOLDED = 1 << 26  # weights of all images together


@dataclass(frozen=True)
class Shape:
    """What decides which form is fastest."""

    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    heads: int
    keep: int
    kernel: int
    stride: int
    padding: int
    dtype: torch.dtype
    has_norm: bool
    by_head: bool

    @property
    def pixels(self) -> int:
        """Of the output."""
        from ...ops.triton.tiles import Geometry

        geometry = Geometry(self.kernel, self.stride, self.padding)
        return geometry.output(self.height) * geometry.output(self.width)


@dataclass(frozen=True)
class StemShape:
    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    dtype: torch.dtype


@dataclass(frozen=True)
class GateShape:
    batch: int
    pixels: int
    channels: int
    heads: int
    width: int
    keep: int


def candidates(shape: Shape | StemShape | GateShape) -> "list[Tile | StemTile | GateTile | str]":
    if isinstance(shape, GateShape):
        from ...ops.triton.selection import gate_tiles

        return [*gate_tiles(shape.batch, shape.heads, shape.channels, shape.width)]
    if isinstance(shape, StemShape):
        return [*_stem_tiles(shape), CUDNN]
    tiles = [*_sparse_tiles(shape), *([] if shape.has_norm else _whole_tiles(shape))]
    return [*dict.fromkeys(tiles), MASKED]


def _sparse_tiles(shape: Shape) -> "list[Tile]":
    """Gathering pays with windows of one pixel, and where a few programs each have little to gather."""
    from ...ops.triton.selection import slots_for
    from ...ops.triton.tiles import Tile

    pixels, slots = shape.pixels, slots_for(shape.keep)
    wide = min(128, max(16, 1 << (shape.outputs - 1).bit_length()))
    depth = next(depth for depth in (64, 32, 16) if slots % depth == 0)
    few = _programs(shape.batch * shape.heads, pixels, shape.outputs, 64, wide) < 2 * PROCESSORS
    found = []
    for block_m in _pixels_of_tiles(pixels, few):
        for block_n in sorted({wide, max(16, wide // 4 if few else wide // 2)}, reverse=True):
            if not few and block_m > 64 and block_n < wide:
                continue
            programs = _programs(shape.batch * shape.heads, pixels, shape.outputs, block_m, block_n)
            warps = 8 if block_m * block_n > 8192 else 4
            splits = _splits(programs, shape.kernel**2 * (slots // depth))
            if shape.kernel > 1 or shape.has_norm:
                found += [Tile(block_m, block_n, depth, "packed", warps, 4, split) for split in splits]
            if not shape.has_norm and (shape.kernel == 1 or few):
                splits = splits if shape.kernel == 1 else splits[-1:]
                found += [Tile(block_m, block_n, depth, "gathered", warps, 3, split) for split in splits]
    return found


def _whole_tiles(shape: Shape) -> "list[Tile]":
    """Folding pays where a weight is read for many pixels and taps."""
    from ...ops.triton.tiles import Tile

    pixels, total = shape.pixels, shape.outputs * shape.heads
    depth = next(depth for depth in (64, 32, 16) if depth == 16 or shape.channels % depth == 0)
    wide = min(128, max(16, 1 << (total - 1).bit_length()))
    few = _programs(shape.batch, pixels, total, 64, wide) < 2 * PROCESSORS
    folds = shape.kernel > 1 and shape.batch * shape.channels * shape.kernel**2 * total <= MOST_FOLDED
    columns = {min(wide, 64), min(wide, 32), *([wide] if shape.batch > 1 else [])} if few else {wide}
    sizes = _pixels_of_tiles(pixels, few)
    found = []
    for block_m in sizes[:1] if shape.batch == 1 else sizes if few or pixels <= 128 else [*sizes, 256]:
        for block_n in sorted(columns, reverse=True):
            programs = _programs(shape.batch, pixels, total, block_m, block_n)
            warps = 8 if block_m * block_n > 8192 or block_m == 256 else 4
            splits = _splits(programs, shape.kernel**2 * -(-shape.channels // depth))
            if folds:
                found += [Tile(block_m, block_n, depth, "folded", warps, 3, split) for split in splits]
            found.append(Tile(block_m, block_n, depth, "gated", warps, 1))
            if shape.kernel == 1 or not folds:
                found += [Tile(block_m, block_n, depth, "gated", warps, 3, split) for split in splits[1:]]
    return found


def _pixels_of_tiles(pixels: int, few: bool) -> list[int]:
    if few:
        return [16, 64] if pixels < 64 else [64]
    return [64, 128] if pixels > 64 else [64]


def _programs(times: int, pixels: int, outputs: int, block_m: int, block_n: int) -> int:
    return times * -(-pixels // block_m) * -(-outputs // block_n)


def _splits(programs: int, steps: int) -> list[int]:
    """One, and where programs are few, what fills the processors once and twice."""
    fitting = [split for split in (2, 4, 8) if programs * split <= 2 * PROCESSORS and steps >= 2 * split]
    return [1, *fitting[-2:]]


def _stem_tiles(shape: StemShape) -> "list[StemTile]":
    from ...ops.triton.stem_conv import CONV, POOL, StemTile

    outputs = min(64, max(16, 1 << (shape.outputs - 1).bit_length()))
    high = POOL.output(CONV.output(shape.height))
    rows = [rows for rows in (1, 2, 4, 7, 14) if rows <= high and shape.batch * -(-high // rows) >= PROCESSORS]
    found = [StemTile(64, outputs, count, 4, 1) for count in (rows or [1])[-2:]]
    plain = ((64, 4, 3), (128, 4, 3), (128, 8, 1), (128, 8, 3), (256, 8, 1))
    return found + [StemTile(pixels, outputs, 0, warps, stages) for pixels, warps, stages in plain]
