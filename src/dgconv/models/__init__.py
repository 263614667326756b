"""Backbones by name."""

from ..layers.method import import_all
from ._classifier import ImageClassifier
from ._registry import register_backbone
from .authors import import_authors_checkpoint
from .factory import create_model, list_models
from .storage import load_model, save_model

import_all(__name__, __path__)  # a network is registered by its file

__all__ = [
    "ImageClassifier",
    "create_model",
    "import_authors_checkpoint",
    "list_models",
    "load_model",
    "register_backbone",
    "save_model",
]
