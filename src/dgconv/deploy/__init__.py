"""From a trained network to a fast one: :func:`prepare` it for this CPU, and keep it on disk."""

from .prepare import prepare
from .prepared import PreparedModel
from .program import StepTime
from .storage import load, save

__all__ = ["prepare", "PreparedModel", "StepTime", "save", "load"]
