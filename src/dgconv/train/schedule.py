"""The three-stage schedule and the learning rate: pure functions of progress p, from 0 to 1 (the paper's figure 3)."""

import math
from numbers import Real

from torch import nn

from ..errors import UserError
from ..layers.controller import Controller
from ..layers.select import dynamic_layers

WARM_UP_END = 1 / 12  # nothing is pruned before
RAMP_END = 3 / 4  # the full rate holds afterwards: fine-tuning


def pruning_ramp(progress: float, end: float = RAMP_END) -> float:
    """Share of the target rate that is pruned: 0, then a straight line, then 1 from ``end`` on."""
    return min(1.0, max(0.0, (progress - WARM_UP_END) / (end - WARM_UP_END)))


def cosine_learning_rate(base: float, progress: float) -> float:
    """Falls from ``base`` to 0 along half a cosine."""
    return base * 0.5 * (1 + math.cos(math.pi * progress))


class GateSchedule(Controller):
    """Moves every gate to where the schedule is. Global gates follow their threshold instead.

    A gate is written to only when its rate means something else: on a GPU every write is a kernel, and most steps
    change nothing.
    """

    def __init__(self, model: nn.Module, ramp_end: float = RAMP_END) -> None:
        self.ramp_end = ramp_end
        self.layers = [layer for _, layer in dynamic_layers(model)]
        self.written: list[int | None] = [None] * len(self.layers)

    def before_step(self, progress: float) -> None:
        for index, layer in enumerate(self.layers):
            rate = layer.pruning_rate * pruning_ramp(progress, self.ramp_end)
            keep = layer.gate.count_at(rate)
            if keep != self.written[index]:
                layer.gate.set_rate(rate)
                self.written[index] = keep


def set_progress(model: nn.Module, progress: float) -> None:
    """Move every head-wise gate of a network to where the schedule is; see :class:`GateSchedule`.

    Args:
        progress: how much of the training is done, from 0 to 1.
    """
    if isinstance(progress, bool) or not isinstance(progress, Real) or not 0 <= progress <= 1:
        raise UserError(
            f"`progress` must be a number from 0 to 1, got {progress!r}; at a step it is step / (number of steps)"
        )
    schedule = GateSchedule(model)
    if not schedule.layers:
        raise UserError(
            f"{type(model).__name__} has no dynamic layers, so there is nothing to prune; convert it with "
            "dgconv.convert_ first, or build a _dgc model"
        )
    schedule.before_step(float(progress))
