"""Static filter pruning, the classic rivals, on whole networks: a file for each method, with its record."""

from ..layers.method import import_all
from .base import Examples, FilterPruning, PruningController
from .cut import resize_
from .methods import attach_pruning, cut, pruning_of, what_is_left, what_will_be_left

import_all(__name__, __path__)

__all__ = [
    "attach_pruning",
    "cut",
    "pruning_of",
    "resize_",
    "what_is_left",
    "what_will_be_left",
    "Examples",
    "FilterPruning",
    "PruningController",
]
