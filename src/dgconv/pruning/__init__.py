"""Static filter pruning, the classic rivals: L1, SFP, FPGM and network slimming, on whole networks."""

from .base import FilterPruning
from .cut import resize_
from .fpgm import GeometricMedianPruning
from .l1 import L1Pruning
from .methods import (
    PRUNING_METHODS,
    PruningMethod,
    attach_pruning,
    cut,
    pruning_of,
    what_is_left,
    what_will_be_left,
)
from .ns import NetworkSlimming
from .sfp import SoftFilterPruning

__all__ = [
    "attach_pruning",
    "cut",
    "pruning_of",
    "resize_",
    "what_is_left",
    "what_will_be_left",
    "PRUNING_METHODS",
    "PruningMethod",
    "FilterPruning",
    "L1Pruning",
    "SoftFilterPruning",
    "GeometricMedianPruning",
    "NetworkSlimming",
]
