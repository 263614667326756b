"""Ending a training before its end: asked for by a signal, or planned."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from ..errors import UserError
from .diagnose import Diverged
from .distributed import world_size


class Stopped(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or the end of the time that was given; every run that is not done was saved first.

    ``exit_status`` of a planned stop is 0, for it went as asked, and torchrun would take others for a failure.
    """

    def __init__(
        self, folders: list[Path], number: int = 0, minutes: float | None = None, diverged: Sequence[Diverged] = ()
    ) -> None:
        self.folders, self.number, self.minutes, self.diverged = folders, number, minutes, diverged
        self.exit_status = 128 + number if number else 2 if diverged else 0
        super().__init__(self.telling(f"Go on with resume of {', '.join(map(str, folders))}"))

    def telling(self, how_to_go_on: str) -> str:
        after = "" if self.minutes is None else f" after {self.minutes:g} minute{'s' * (self.minutes != 1)}"
        return "\n".join([f"stopped{after} and saved. {how_to_go_on}", *map(str, self.diverged)])


@dataclass(frozen=True)
class TimeLimit:
    """A time limit, so many minutes from now on."""

    minutes: float
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise UserError(f"`stop_after` takes a number of minutes above 0, got {self.minutes:g}")

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.began >= 60 * self.minutes


class StopRequest:
    """A request by a signal, of which the first counts, or by a time limit. A second Ctrl-C ends at once."""

    def __init__(self, limit: TimeLimit | None = None) -> None:
        self.number, self.limit = 0, limit

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number

    @property
    def is_made(self) -> bool:
        return bool(self.number) or (self.limit is not None and self.limit.is_over)

    def stopped(self, folders: list[Path], diverged: Sequence[Diverged] = ()) -> Stopped:
        minutes = self.limit.minutes if self.limit and not self.number else None
        return Stopped(folders, self.number, minutes, diverged)


@contextmanager
def stop_requests(limit: TimeLimit | None = None) -> Iterator[StopRequest]:
    """Ctrl-C and SIGTERM are taken at the end of a step. Under torchrun they are torchrun's to handle."""
    stop = StopRequest(limit)
    if world_size() > 1 or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old: dict[int, Callable[[int, FrameType | None], object] | int | None] = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
