"""Memory in huge pages, where the system has them: weights are read once a run, as fast as pages are found."""

import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
BLOCK_FLOATS = 8 << 20  # reserved at a time; what is never written takes no memory
ALIGNMENT = 16  # floats: a cache line


def empty(floats: int) -> Tensor:
    """A vector with any content."""
    if 4 * floats < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(floats)
    size = -(-4 * floats // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(pages, dtype=torch.float32)
    start = -memory.data_ptr() % HUGE_PAGE // 4
    return memory[start : start + floats]


class Memory:
    """Hands out vectors, one behind the other."""

    def __init__(self) -> None:
        self._block, self._used = torch.empty(0), 0

    def empty(self, floats: int) -> Tensor:
        if self._used + floats > len(self._block):
            self._block, self._used = empty(max(floats, BLOCK_FLOATS)), 0
        start = self._used
        self._used += -(-floats // ALIGNMENT) * ALIGNMENT
        return self._block[start : start + floats]
