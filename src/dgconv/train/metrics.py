"""What is told of an epoch."""

from dataclasses import dataclass


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
