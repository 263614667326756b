"""Layers that keep less and less while training goes on, in equal steps over its first half."""

import math
from typing import Any

from .method import MethodLayer


def steps_done(progress: float, steps: int) -> int:
    """How many of ``steps`` have been taken: step s is at progress s / (2 steps), the last one half way."""
    return max(0, min(steps, math.floor(2 * steps * progress + 1e-9)))  # 2 * 49 * (1 / 98) comes out below 1


class StepwiseLayer(MethodLayer):
    """Calls :meth:`keep_only` when :meth:`keep_at` changes, which on most steps it does not."""

    _keeping: int | None = None

    def keep_at(self, progress: float) -> int:
        """How many channels are kept at this progress."""
        raise NotImplementedError

    def keep_only(self, keep: int) -> None:
        """Keep so many from now on."""
        raise NotImplementedError

    def before_step(self, progress: float) -> None:
        keep = self.keep_at(progress)
        if keep != self._keeping:
            self.keep_only(keep)
            self._keeping = keep

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._keeping = None  # the state may be of another step
        super()._load_from_state_dict(*args, **kwargs)
