"""How much memory prepared networks may take beside their weights: for arenas, in which a call has its values, and for
layouts, which say where. One budget for all networks and threads of the process.

``DGCONV_MEMORY`` sets it, as in ``DGCONV_MEMORY=2G``; else it is half of what is free when it is first needed. What was
used least recently is given up first, and a call for which there is no room waits for others to end.
"""

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ...errors import UserError
from .memory import HUGE_PAGE, empty

VARIABLE = "DGCONV_MEMORY"
SHARE_OF_FREE = 0.5
LEAST = 1 << 28  # bytes, however little is free
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
WHERE_UNKNOWN = 1 << 32  # bytes that are taken to be free where the system does not say
BESIDE = 128 << 10  # bytes that are counted with each arena: what the thread that has it takes for itself
NOT_COUNTED = 1 / 24  # of the budget of a process: what threads, results and the allocator take beside what is counted
LOOSEST = 2  # times what is needed: a free arena that is larger stays free


class MemoryUse(NamedTuple):
    """Bytes of arenas and layouts that there were at most, and that there may be."""

    peak: int
    limit: int

    def __str__(self) -> str:
        return f"{shown(self.peak)} of {shown(self.limit)} ({VARIABLE})"


class Budget:
    """Hands out arenas and counts all bytes, for any number of threads.

    Args:
        limit: of what is counted; default what the environment says, of all that the process takes.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit, self._share = limit, 1 - NOT_COUNTED if limit is None else 1.0
        self._peak = self._used = 0  # bytes: of arenas, free or not, and of layouts
        self._kept: OrderedDict[object, tuple[int, Callable[[], object]]] = OrderedDict()  # least recently used first
        self._taken: dict[int, Tensor] = {}  # arenas by address
        self._free: dict[int, Tensor] = {}  # these are kept, too
        self._waiting: deque[object] = deque()  # calls, in the order in which they came
        self._forgotten: deque[object] = deque()  # what a finalizer left here, which must not wait for the lock
        self._changed = threading.Condition(threading.Lock())

    @property
    def limit(self) -> int:
        if self._limit is None:
            text = os.environ.get(VARIABLE, "")
            self._limit = bytes_of(text) if text else max(LEAST, int(SHARE_OF_FREE * free_memory()))
        return self._limit

    @property
    def _most(self) -> int:
        """Bytes that may be counted."""
        return int(self._share * self.limit)

    @property
    def use(self) -> MemoryUse:
        return MemoryUse(self._peak, self.limit)

    def take(self, floats: int) -> int:
        """The address of an arena of so many floats or more, for nobody else until it is given back. Only the budget
        has the arena itself: what it gives up is gone at once."""
        with self._changed:
            if self._waiting or (address := self._fitting(floats)) is None:
                address = self._wait_for(floats)
        if address is not None:
            return address
        try:
            arena = empty(_rounded(floats))
        except BaseException:
            with self._changed:
                self._used -= _size(floats)
                self._changed.notify_all()
            raise
        self._taken[arena.data_ptr()] = arena
        return arena.data_ptr()

    def give_back(self, address: int) -> None:
        with self._changed:
            self._free[address] = self._taken.pop(address)
            self._kept[address] = _size(len(self._free[address])), lambda: self._free.pop(address)
            if self._waiting:
                self._changed.notify_all()

    def keep(self, key: object, size: int, drop: Callable[[], object]) -> None:
        """Counts bytes that whoever has them gives up when ``drop`` is called: at once where there is no room."""
        with self._changed:
            self._tidy()
            self._make_room(size)
            if key in self._kept:
                return
            if self._used + size > self._most:
                drop()
                return
            self._kept[key] = size, drop
            self._count(size)

    def was_used(self, key: object) -> None:
        with self._changed:
            if key in self._kept:
                self._kept.move_to_end(key)

    def forget(self, key: object) -> None:
        """Says that its owner is gone. Waits for nothing: the garbage collector may call."""
        self._forgotten.append(key)

    def after_fork(self) -> None:
        """In a new process no other thread will give anything back, nor let go of a lock."""
        self._changed = threading.Condition(threading.Lock())
        self._waiting.clear()
        self._taken.clear()
        self._used = sum(size for size, _ in self._kept.values())

    def _fitting(self, floats: int) -> int | None:
        """Takes the smallest free arena that is large enough."""
        most = LOOSEST * _rounded(floats)
        found = [(len(arena), address) for address, arena in self._free.items() if floats <= len(arena) <= most]
        if not found:
            return None
        _, address = min(found)
        del self._kept[address]
        self._taken[address] = self._free.pop(address)
        return address

    def _wait_for(self, floats: int) -> int | None:
        """The address of a free arena, or None once there is room for a new one, which is then counted. In order: else
        a large call would wait for as long as small ones come."""
        size = _size(floats)
        if size > self._most:
            raise UserError(
                f"this image needs {shown(size)} of memory for what lies between its layers, and the budget is "
                f"{shown(self.limit)}; use a smaller image or fewer threads, or set {VARIABLE} to more"
            )
        turn = object()
        self._waiting.append(turn)
        try:
            while True:
                if self._waiting[0] is turn:
                    if (address := self._fitting(floats)) is not None:
                        return address
                    self._tidy()
                    self._make_room(size)
                    if self._used + size <= self._most:
                        self._count(size)
                        return None
                self._changed.wait()
        finally:
            self._waiting.remove(turn)
            self._changed.notify_all()

    def _count(self, size: int) -> None:
        self._used += size
        self._peak = max(self._peak, self._used)

    def _make_room(self, size: int) -> None:
        """Gives up what can be given up, as far as it is needed."""
        while self._used + size > self._most and self._kept:
            _, (held, drop) = self._kept.popitem(last=False)
            self._used -= held
            drop()

    def _tidy(self) -> None:
        with suppress(IndexError):
            while True:
                size, _ = self._kept.pop(self._forgotten.popleft(), (0, None))
                self._used -= size


def _size(floats: int) -> int:
    """Bytes that an arena for so many floats counts for."""
    return 4 * _rounded(floats) + BESIDE


def _rounded(floats: int) -> int:
    """Up to one of a few lengths, so that images of nearly one size share arenas: by an eighth at most, or to the whole
    pages that the system gives for it."""
    step = 1 << max(10, floats.bit_length() - 4)
    if 4 * floats >= HUGE_PAGE:
        step = max(step, HUGE_PAGE // 4)
    return -(-max(1, floats) // step) * step


def shown(size: int) -> str:
    """Bytes in words."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def bytes_of(text: str) -> int:
    """``512M`` and the like."""
    number, unit = text.strip().upper().removesuffix("IB").removesuffix("B"), ""
    if number and number[-1] in UNITS:
        number, unit = number[:-1], number[-1]
    if not number.isascii() or not number.isdigit() or not 0 < int(number[:20]) * UNITS[unit] < 1 << 62:
        raise UserError(f"{VARIABLE}={text!r} must be bytes, such as 2000000000, 512M or 2G")
    return int(number) * UNITS[unit]


def free_memory() -> int:
    """Bytes that this process could still have, as the system says."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    for folder, most, now in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # "max" is no number, and no limit
            limit, used = (int(Path(folder, name).read_text()) for name in (most, now))
            counts = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
            found.append(max(0, limit - used + int(counts.get("inactive_file", 0))))  # pages of files are given up
    if not found:
        with suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(found, default=WHERE_UNKNOWN)


BUDGET = Budget()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BUDGET.after_fork)
