"""The training method: schedule, losses, global threshold, and a loop that uses them."""

from .engine import Result, resume, train, train_all
from .evaluate import Evaluation, Evaluator, evaluate
from .losses import angle_loss, lasso_loss, take_saliencies
from .method import TrainingMethod
from .metrics import EpochMetrics
from .recipe import Recipe
from .schedule import cosine_learning_rate, pruning_ramp, set_progress
from .stop import Stopped, TimeLimit
from .threshold import GlobalThreshold

__all__ = [
    "Recipe",
    "train",
    "train_all",
    "resume",
    "Stopped",
    "TimeLimit",
    "Evaluator",
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
    "TrainingMethod",
]
