"""All that acts on a network while it trains, put together from what the network is made of."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ..layers.controller import Controller, Controllers
from ..layers.gate import Gate
from ..layers.method import MethodLayer
from ..layers.select import dynamic_layers
from ..pruning import Examples, PruningController, pruning_of
from .distillation import Distillation
from .freezing import ChoiceFreezing
from .losses import DEFAULT_ANGLE_WEIGHT, SaliencyLosses
from .mac_budget import MacBudget
from .schedule import GateSchedule
from .tables import TrainingTable
from .threshold import GlobalThreshold, macs_per_saliency


def controllers_of(
    model: nn.Module,
    training: TrainingTable | None = None,
    *,
    input_size: tuple[int, ...] | None = None,
    images: Callable[[], Tensor] | None = None,
    examples: Examples | None = None,
    teacher: nn.Module | None = None,
) -> Controllers:
    """One controller for everything: gates, losses, global threshold, methods, pruning, MAC budget, distillation.

    For a loop of your own, too; :class:`~dgconv.layers.Controller` shows how a step uses it.

    Args:
        training: the settings that some of them follow.
        input_size: (channels, height, width), for a threshold that is a share of MACs; default ``model.input_size``.
        images: gives images to measure on, for a MAC budget.
        examples: gives training images with their labels, for pruning that chooses by them.
        teacher: a network that is imitated.
    """
    training = training or TrainingTable()
    members: list[Controller] = [layer for layer in model.modules() if isinstance(layer, MethodLayer)]
    gates = [layer.gate for _, layer in dynamic_layers(model)]
    if gates:
        members += [GateSchedule(model, training.ramp_end), _losses(gates, training)]
    if gates and training.freeze_choice is not None:
        members.append(ChoiceFreezing(model, training.freeze_choice))
    if any(gate.shared_threshold is not None for gate in gates):
        members.append(_threshold(model, training, input_size))
    if pruning := pruning_of(model):
        members.append(PruningController(model, pruning, examples))
    if training.mac_budget is not None:
        members.append(MacBudget(model, training.mac_budget, training.ramp_end, images))
    if teacher is not None:
        members.append(Distillation(teacher, training.distillation_weight, training.distillation_temperature))
    return Controllers(members)


def _losses(gates: Sequence[Gate], training: TrainingTable) -> SaliencyLosses:
    default = DEFAULT_ANGLE_WEIGHT if any(gate.shared_threshold is not None for gate in gates) else 0.0
    angle = default if training.angle_weight is None else training.angle_weight
    return SaliencyLosses(training.lasso_weight, training.lasso, angle, training.balance_weight)


def _threshold(model: nn.Module, training: TrainingTable, input_size: tuple[int, ...] | None) -> GlobalThreshold:
    weights = macs_per_saliency(model, input_size) if training.threshold_share == "macs" else None
    return GlobalThreshold(
        model,
        training.epochs,
        training.threshold_batches,
        training.threshold_every,
        weights,
        training.ramp_end,
        training.threshold_momentum,
    )
