"""A trained network made fast: measured, planned by time, converted, fine-tuned, in int8, and measured again."""

from .goal import Goal
from .planning import LayerPlan, Plan, plan
from .run import Tuned, resume, tune

__all__ = ["tune", "resume", "plan", "Plan", "LayerPlan", "Goal", "Tuned"]
