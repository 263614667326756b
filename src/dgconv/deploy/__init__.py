"""From a trained network to a fast one: :func:`prepare` it for this CPU, measure it, keep it on disk,
write it for other programs."""

from .bench import measure
from .export import export_model
from .prepare import prepare
from .prepared import PreparedModel
from .program import StepTime
from .storage import load, save

__all__ = ["prepare", "PreparedModel", "StepTime", "save", "load", "export_model", "measure"]
