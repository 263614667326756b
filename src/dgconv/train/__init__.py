"""The training method: schedule, losses, global threshold, and a loop that uses them."""

from .engine import EpochMetrics, Result, train
from .evaluate import Evaluation, evaluate
from .losses import angle_loss, lasso_loss, take_saliencies
from .recipe import Recipe
from .schedule import cosine_learning_rate, pruning_ramp, set_progress
from .threshold import GlobalThreshold

__all__ = [
    "Recipe",
    "train",
    "Result",
    "EpochMetrics",
    "evaluate",
    "Evaluation",
    "pruning_ramp",
    "cosine_learning_rate",
    "set_progress",
    "lasso_loss",
    "angle_loss",
    "take_saliencies",
    "GlobalThreshold",
]
