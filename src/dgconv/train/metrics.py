"""What is told of an epoch."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from .evaluate import Evaluation


class Evaluating(Enum):
    """What a run says when the evaluation of an epoch is on its way."""

    ON_ITS_WAY = auto()


EVALUATING = Evaluating.ON_ITS_WAY


@dataclass(frozen=True)
class EpochEnd:
    """What is known of an epoch once it is trained; ``evaluation`` waits for the rest."""

    progress: float
    loss_sum: float
    wrong: float
    skipped: int
    threshold: float | None
    trained: float  # seconds
    started: float  # when the evaluation was, by perf_counter
    evaluation: Callable[[], Evaluation]
