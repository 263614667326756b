"""Every value of a network apart from the others, so that AddressSanitizer sees who writes or reads beyond its own.

In earnest, values share one arena, one after the other in time, and packed weights share blocks. Here, no place in the
arena is used twice, what lies between two places is poisoned, and packed weights have memory of their own.
"""

from collections.abc import Iterable
from ctypes import CDLL, c_size_t, c_void_p
from typing import Any

import torch
from torch import Tensor

from dgconv.deploy.run import layout, program
from dgconv.deploy.run.arena import Buffer
from dgconv.deploy.run.budget import BUDGET
from dgconv.deploy.run.memory import PackedMemory, aligned

GAP = 256  # floats between two values


def use() -> None:
    """From now on, in this process, which must have been started with AddressSanitizer."""
    layout.assign_offsets = _assign_offsets
    program.Layout = _Layout  # type: ignore[misc]
    PackedMemory.empty = lambda self, floats: torch.empty(floats)  # type: ignore[method-assign]


def _assign_offsets(buffers: Iterable[Buffer]) -> int:
    end = GAP
    for buffer in buffers:
        buffer.offset = end
        end = aligned(end + buffer.floats) + GAP
    _placed[:] = [(buffer.offset, buffer.floats) for buffer in buffers]
    return end


_placed: list[tuple[int, int]] = []  # by the last call: where, and how many floats


class _Layout(layout.Layout):
    """Takes an arena of its own for each call, and lets only that of it be touched which somebody was given."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._given = [*_placed]
        self._scratch_given = self._scratch_floats
        self._scratch_floats += GAP
        self._program.scratch_floats = self._scratch_floats

    def run(self, x: Tensor, y: Tensor, chosen: Tensor | None = None, seconds: Tensor | None = None) -> None:
        threads = torch.get_num_threads()
        floats = self._arena_floats + threads * self._scratch_floats
        BUDGET.give_back(BUDGET.take(floats))  # which may refuse
        arena = torch.full((floats,), torch.nan)  # nobody may count on zeros
        scratch = [(self._arena_floats + rank * self._scratch_floats, self._scratch_given) for rank in range(threads)]
        _asan("poison", arena, 0, floats)
        for offset, length in self._given + scratch:
            _asan("unpoison", arena, offset, length)
        try:
            kept, times = (None if part is None else part.data_ptr() for part in (chosen, seconds))
            self._run(self._program_address, x.data_ptr(), y.data_ptr(), arena.data_ptr(), kept, threads, times)
        finally:
            _asan("unpoison", arena, 0, floats)


def _asan(what: str, arena: Tensor, offset: int, floats: int) -> None:
    call = CDLL(None)[f"__asan_{what}_memory_region"]
    call(c_void_p(arena.data_ptr() + 4 * offset), c_size_t(4 * floats))
