"""What is known of a data set by its name alone, before any of it is read."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class DataFacts:
    """What of a data set decides the shape of a training; ``source`` says how we know."""

    train_images: int
    classes: int
    side: int
    source: Literal["known", "assumed", "counted"] = "known"


@dataclass(frozen=True)
class DataSetRecord:
    """A kind of data set: what its folder must hold, and what is the same wherever it lies."""

    needs: str | None = None  # in its folder; None: it is embedded
    facts: DataFacts | None = None  # None: only its folder tells
    can_resize: bool = True
    has_columns: bool = False  # of which one holds the labels
    short_training: dict[str, Any] = field(default_factory=dict)  # settings that suit it, where minutes must do
