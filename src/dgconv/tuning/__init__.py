"""A trained network made fast: measured, planned by time, converted, fine-tuned, in int8, and measured again."""

from .goal import Goal
from .planning import LayerPlan, Plan, plan
from .result import Tuned
from .run import resume, tune

__all__ = ["tune", "resume", "plan", "Plan", "LayerPlan", "Goal", "Tuned"]
