"""The training method: schedule, losses, controllers, and a loop that uses them."""

from .controllers import controllers_of
from .distillation import Distillation
from .engine import resume, train, train_all
from .evaluate import Evaluation, Evaluator, evaluate
from .losses import angle_loss, lasso_loss, take_saliencies
from .recipe import Recipe
from .recipe_files import list_recipes, load_recipe
from .schedule import cosine_learning_rate, pruning_ramp, set_progress
from .side_by_side import FinishedRun
from .stop import Stopped, TimeLimit
from .threshold import GlobalThreshold

__all__ = [
    "Recipe",
    "list_recipes",
    "load_recipe",
    "train",
    "train_all",
    "resume",
    "Stopped",
    "TimeLimit",
    "Evaluator",
    "FinishedRun",
    "evaluate",
    "Evaluation",
    "pruning_ramp",
    "cosine_learning_rate",
    "set_progress",
    "lasso_loss",
    "angle_loss",
    "take_saliencies",
    "controllers_of",
    "GlobalThreshold",
    "Distillation",
]
