"""Pruning methods by name, and how one is put on a network and taken off again."""

from typing import Literal

from torch import nn

from ..errors import UserError, unknown_name
from ..layers.dynamic_group_conv import DynamicGroupConv2d
from ..layers.method import MethodLayer
from ..layers.standard_group_conv import StandardGroupConv2d
from .base import FilterPruning
from .cut import cut_channels, without_pruning
from .fpgm import GeometricMedianPruning
from .l1 import L1Pruning
from .ns import NetworkSlimming
from .sfp import SoftFilterPruning

PruningMethod = Literal["l1", "sfp", "fpgm", "ns"]
PRUNING_METHODS: dict[str, type[FilterPruning]] = {
    "l1": L1Pruning,
    "sfp": SoftFilterPruning,
    "fpgm": GeometricMedianPruning,
    "ns": NetworkSlimming,
}


def attach_pruning(
    model: nn.Module,
    method: str,
    rate: float | None = None,
    budget: float | None = None,
    input_size: tuple[int, ...] | None = None,
) -> FilterPruning:
    """Make a network one that is pruned while it trains, in place; see :class:`FilterPruning` for the arguments.

    ``dgconv.train`` calls the hooks. A loop of your own does so through :class:`~dgconv.train.method.TrainingMethod`.
    """
    if method not in PRUNING_METHODS:
        raise unknown_name("pruning method", method, PRUNING_METHODS)
    if pruning_of(model) is not None:
        raise UserError("the model has a pruning method already; build a new one for another")
    if any(isinstance(layer, DynamicGroupConv2d | StandardGroupConv2d | MethodLayer) for layer in model.modules()):
        raise UserError("filter pruning is for networks of plain convolutions; name a model without a method")
    model.pruning = PRUNING_METHODS[method](model, rate, budget, input_size)
    if isinstance(config := getattr(model, "config", None), dict):
        given = {"prune": method, "prune_rate": rate, "prune_budget": budget}
        config.update({key: value for key, value in given.items() if value is not None})
    return model.pruning


def pruning_of(model: nn.Module) -> FilterPruning | None:
    pruning = getattr(model, "pruning", None)
    return pruning if isinstance(pruning, FilterPruning) else None


def what_is_left(model: nn.Module) -> nn.Module:
    """The network as it runs: cut, where filters are pruned; any other as it is."""
    return cut(model) if pruning_of(model) else model


def what_will_be_left(model: nn.Module) -> nn.Module:
    """The same before the training: as many channels are cut as will be, whichever, which is enough to count MACs."""
    pruning = pruning_of(model)
    if pruning is None:
        return model
    smaller = without_pruning(model)
    cut_channels(smaller, pruning.sets, pruning.as_many_as_chosen(model, pruning.rate))
    return smaller


def cut(model: nn.Module) -> nn.Module:
    """A new network without the channels that ``model`` has pruned for good, and without masks.

    In eval mode it computes the same, with fewer MACs. Its ``config`` has the widths of the layers, so that it is saved
    and loaded as any other.
    """
    pruning = pruning_of(model)
    if pruning is None:
        raise UserError("the model has no pruning method, so nothing tells what to cut; see attach_pruning")
    smaller = without_pruning(model)
    widths = cut_channels(smaller, pruning.sets, pruning.kept())
    if isinstance(config := getattr(smaller, "config", None), dict):
        for key in ("prune", "prune_rate", "prune_budget"):
            config.pop(key, None)
        if widths:
            config["widths"] = config.get("widths", {}) | widths  # a network that was cut before has some
    return smaller
