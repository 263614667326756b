"""From a trained network to a fast one: prepared for this CPU, kept on disk, written for other programs."""

from .agreement import Agreement, agreement
from .compile.freeze import freeze
from .compile.prepare import prepare
from .export.formats import export_model
from .run.prepared import PreparedModel
from .run.program import StepTime
from .storage import load, save

__all__ = ["prepare", "freeze", "agreement", "Agreement", "PreparedModel", "StepTime", "save", "load", "export_model"]
