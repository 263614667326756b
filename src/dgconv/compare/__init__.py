"""Every method under one recipe, at one MAC budget: trained, counted and timed side by side."""

from .budget import expected_share, options_for_budget
from .run import CompareSettings, compare
from .table import Comparison, MethodResult, SeedResult

__all__ = [
    "compare",
    "CompareSettings",
    "Comparison",
    "MethodResult",
    "SeedResult",
    "options_for_budget",
    "expected_share",
]
