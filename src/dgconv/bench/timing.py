"""The one way to time things here: side by side, interleaved, each call of a form after a while of its own.

Repeats are interleaved: each one runs every form in turn, so that a machine that slows down slows all of them down.
Before the timed call there is a pause, and then the form runs untimed for a while: the threads of each runtime go on
spinning for some milliseconds after a call, on cores that the next runtime needs, and caches hold what others left.
"""

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ..environment import describe_environment, usable_cores
from ..errors import UserError
from ..ops import native
from ..version import __version__

SECONDS = 8.0  # that all repeats take together, unless told how many
FEWEST, MOST = 5, 100  # repeats
PAUSE, GET_GOING = 0.01, 0.02  # seconds before a timed call
THREADS_A_CORE = 16  # at most: where many more cannot be started, OpenMP ends the process
Key = TypeVar("Key", bound=Hashable)


def time_side_by_side(
    calls: Mapping[Key, Callable[[], Any]], repeats: int | None = None, seconds: float = SECONDS
) -> dict[Key, list[float]]:
    """Seconds of each call, so many times or as often as ``seconds`` hold, at least 5 times."""
    found: dict[Key, list[float]] = {key: [] for key in calls}
    for call in calls.values():  # to warm up
        call()
    start = time.perf_counter()
    for call in calls.values():
        _settle(call)
        call()
    count = repeats or max(FEWEST, min(MOST, round(seconds / (time.perf_counter() - start))))
    for _ in range(count):
        for key, call in calls.items():
            _settle(call)
            start = time.perf_counter()
            call()
            found[key].append(time.perf_counter() - start)
    return found


def _settle(call: Callable[[], Any]) -> None:
    """Let the others come to rest and this form get going."""
    time.sleep(PAUSE)
    end = time.perf_counter() + GET_GOING
    call()
    while time.perf_counter() < end:
        call()


def quartiles(values: list[float]) -> tuple[float, float]:
    """The first and the third."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


@contextmanager
def threads_restored() -> Iterator[None]:
    """Whatever number of threads torch is told meanwhile, it has as many as before in the end."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_threads(threads: tuple[int, ...]) -> None:
    check_positive("threads", threads)
    if max(threads) > (most := THREADS_A_CORE * usable_cores()):
        raise UserError(
            f"`threads` must be at most {most} on this machine of {usable_cores()} cores, got {max(threads)}"
        )


def check_positive(name: str, values: tuple[int, ...]) -> None:
    if not values or not all(isinstance(value, int) and value >= 1 for value in values):
        raise UserError(f"`{name}` must be at least 1, got {' '.join(map(str, values)) or 'none'}")


def describe_machine() -> dict[str, Any]:
    """The header of the figures."""
    environment: dict[str, Any] = describe_environment("cpu")
    del environment["threads"]  # each measurement has its own
    return environment | {"cores": usable_cores(), "dgconv": __version__, "native kernels": native.isa()}
