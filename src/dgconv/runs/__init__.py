"""Run folders: what is in them, who writes it, and one reader that opens each file once."""

from .checkpoint import Checkpoint, Position
from .folder import RunFolder
from .metrics import EpochMetrics, RunLog

__all__ = ["RunFolder", "Checkpoint", "Position", "EpochMetrics", "RunLog"]
