"""Data sets by name: `load_data("digits")` gives two splits that yield normalized batches."""

from typing import TYPE_CHECKING, Any

from .base import Data, Split
from .encoded_split import EncodedSplit
from .facts import DataFacts
from .inputs import Inputs
from .stats import Stats
from .tensor_split import TensorSplit

if TYPE_CHECKING:
    from .load import find_data, list_data, load_data, look_at_data

__all__ = [
    "load_data",
    "look_at_data",
    "find_data",
    "list_data",
    "Data",
    "DataFacts",
    "Inputs",
    "Split",
    "TensorSplit",
    "EncodedSplit",
    "Stats",
]


def __getattr__(name: str) -> Any:
    """What reads data sets comes when it is asked for: it needs pyarrow, and a network without data does not."""
    if name not in ("find_data", "list_data", "load_data", "look_at_data"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import load

    return getattr(load, name)
