"""What is told of an epoch."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from .evaluate import Evaluation


@dataclass(frozen=True)
class EpochMetrics:
    """One line of ``metrics.jsonl``. Errors are in percent."""

    epoch: int
    learning_rate: float
    target_pruned_share: float
    train_loss: float
    train_error: float
    test_loss: float
    test_error: float
    test_error_top5: float
    pruned_share: float | None
    threshold: float | None
    images_per_second: float
    seconds: float
    skipped_images: int | None = None  # corrupt ones, of training and test together; None where they are an error
    first_step_seconds: float | None = None  # of a start: compiling and capturing included; None in later epochs


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
