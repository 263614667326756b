"""Tiles of contiguous matrices: what is outside of one is read as zero, and not written."""
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl


@triton.jit
def _load_tile(ptr, row, column, rows, columns):
    """``[row, column]`` of a matrix."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(ptr + row[:, None] * columns + column[None, :], mask=inside, other=0.0)


@triton.jit
def _store_tile(ptr, tile, row, column, rows, columns):
    """Makes ``tile`` the ``[row, column]`` of a matrix, in its dtype."""
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(ptr + row[:, None] * columns + column[None, :], tile.to(ptr.dtype.element_ty), mask=inside)
