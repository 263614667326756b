"""Backbones by name."""

from . import condensenet, mobilenetv2, resnet  # noqa: F401  (each registers its backbones)
from ._classifier import ImageClassifier
from ._registry import create_model, list_models, register_backbone

__all__ = ["ImageClassifier", "create_model", "list_models", "register_backbone"]
