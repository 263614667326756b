"""Data sets by name: `load_data("digits")` gives two splits that yield normalised batches."""

from .base import Data, Split
from .encoded_split import EncodedSplit
from .load import list_data, load_data
from .stats import Stats
from .tensor_split import TensorSplit

__all__ = ["load_data", "list_data", "Data", "Split", "TensorSplit", "EncodedSplit", "Stats"]
