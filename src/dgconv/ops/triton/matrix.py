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


@triton.jit
def _matmul(
    left_ptr, right_ptr, row, column, rows, width, inner, columns,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr = False,
):  # fmt: skip
    """``[row, column]`` of [rows, width] times [inner, columns], in float32. Factors have the dtype of the right one.

    ``width`` may be more than ``inner``: then the left one is filled up with zeros. TRANSPOSED, it is [width, rows].
    """
    total = tl.zeros([row.shape[0], column.shape[0]], tl.float32)
    for start in range(0, width, BLOCK):
        k = start + tl.arange(0, BLOCK)
        right = _load_tile(right_ptr, k, column, inner, columns)
        if TRANSPOSED:
            left = tl.trans(_load_tile(left_ptr, k, row, width, rows))
        else:
            left = _load_tile(left_ptr, row, k, rows, width)
        total = tl.dot(left.to(right.dtype), right, total, input_precision=PRECISION)
    return total
