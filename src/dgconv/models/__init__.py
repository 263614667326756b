"""Backbones by name."""

from . import condensenet, mobilenetv2, resnet  # noqa: F401  (each registers its backbones)
from ._classifier import ImageClassifier
from ._registry import create_model, list_models, register_backbone
from .authors import import_authors_checkpoint
from .storage import load_model, save_model

__all__ = [
    "ImageClassifier",
    "create_model",
    "import_authors_checkpoint",
    "list_models",
    "load_model",
    "register_backbone",
    "save_model",
]
