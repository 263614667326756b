"""Every method under one recipe, at one MAC budget: trained, counted and timed side by side."""

from .budget import expected_share, options_for_budget
from .record import Comparison, MethodResult, SeedResult
from .run import CompareSettings, compare

__all__ = [
    "compare",
    "CompareSettings",
    "Comparison",
    "MethodResult",
    "SeedResult",
    "options_for_budget",
    "expected_share",
]
