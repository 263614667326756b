"""Data sets by name: `load_data("digits")` gives two splits that yield normalized batches."""

from .base import Data, Split
from .encoded_split import EncodedSplit
from .facts import DataFacts
from .inputs import Inputs
from .load import find_data, list_data, load_data, look_at_data
from .stats import Stats
from .tensor_split import TensorSplit

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
