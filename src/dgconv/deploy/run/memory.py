"""Memory from the system itself, which gets it back when it is no longer used, in huge pages where there are such:
weights are read once a run, as fast as pages are found, and the results of large layers are written to memory that the
system has yet to find."""

import mmap
from ctypes import CDLL, c_size_t, c_void_p
from functools import cache

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
LEAST_MAPPED = 64 << 10  # bytes: of what is smaller, the allocator keeps little
BLOCK_FLOATS = 8 << 20  # reserved at a time; what is never written takes no memory
ALIGNMENT = 16  # floats: a cache line


def empty(floats: int) -> Tensor:
    """A vector with any content. It takes whole pages: of ``HUGE_PAGE`` bytes where it has as many."""
    if 4 * floats < LEAST_MAPPED or not hasattr(mmap, "MADV_HUGEPAGE"):
        return _empty(floats)
    is_huge = 4 * floats >= HUGE_PAGE
    size = -(-4 * floats // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE if is_huge else 4 * floats
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if is_huge:
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(pages, dtype=torch.float32)
    start = -memory.data_ptr() % HUGE_PAGE // 4 if is_huge else 0
    return memory[start : start + floats]


def empty_result(shape: tuple[int, ...]) -> Tensor:
    """A tensor of torch's own, with any content. Where its memory is new to the process, it comes in huge pages as far
    as whole ones fit: to be given small ones, one by one, takes longer than most convolutions."""
    y = _empty(shape)
    if y.nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        start, end = -(-y.data_ptr() // HUGE_PAGE), (y.data_ptr() + y.nbytes) // HUGE_PAGE
        _c_library().madvise(c_void_p(start * HUGE_PAGE), c_size_t((end - start) * HUGE_PAGE), mmap.MADV_HUGEPAGE)
    return y


def _empty(shape: int | tuple[int, ...]) -> Tensor:
    """What native code writes to, whatever torch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


@cache
def _c_library() -> CDLL:
    return CDLL(None)


def aligned(floats: int) -> int:
    """Rounds up to whole cache lines."""
    return -(-floats // ALIGNMENT) * ALIGNMENT


class PackedMemory:
    """Hands out vectors, one behind the other. ``expected`` floats or so will be asked for: few need no huge page."""

    def __init__(self, expected: int = BLOCK_FLOATS) -> None:
        self._block, self._used = _empty(0), 0
        self._block_floats = min(BLOCK_FLOATS, aligned(2 * expected + 1))

    def empty(self, floats: int) -> Tensor:
        if self._used + floats > len(self._block):
            self._block, self._used = empty(max(floats, self._block_floats)), 0
        start = self._used
        self._used += aligned(floats)
        return self._block[start : start + floats]
