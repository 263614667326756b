"""How many threads a program runs with, on a machine that may be busy."""

import time

import torch

ALONE_FOR = 20  # times as long as a call took that others slowed down: trying again costs a twentieth at most


class Company:
    """As many threads as torch uses, until they slow each other down; then one, for a while.

    Where other processes need the processors, threads wait for those of them that the system has put aside, and one
    by itself is done sooner.
    """

    def __init__(self) -> None:
        self._alone_until = 0.0

    def threads(self) -> int:
        is_alone = self._alone_until and time.perf_counter() < self._alone_until
        return 1 if is_alone else torch.get_num_threads()

    def slowed_down(self, seconds: float) -> None:
        """Told of a call that took so long, and that one thread would have been faster at."""
        self._alone_until = time.perf_counter() + ALONE_FOR * seconds
