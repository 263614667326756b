"""How long networks take: one way to time things, and a network beside what a user would run instead."""

from .result import Bench
from .run import measure

__all__ = ["measure", "Bench"]
