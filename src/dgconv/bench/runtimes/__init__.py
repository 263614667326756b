"""What a user would run the dense network with instead: one runtime a file, known by lying here."""

from ...layers.method import import_all
from .record import RUNTIMES, Runtime, Source, register_runtime

import_all(__name__, __path__)

__all__ = ["RUNTIMES", "Runtime", "Source", "register_runtime"]
