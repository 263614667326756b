"""How long networks take: one way to time things, and a network beside what a user would run instead."""

from .result import Bench
from .run import measure
from .worth import where_faster

__all__ = ["measure", "Bench", "where_faster"]
