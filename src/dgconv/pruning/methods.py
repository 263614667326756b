"""How a pruning method is put on a network by its name, and taken off again."""

from typing import Any

from torch import nn

from ..errors import UserError, unknown_name
from ..layers.method import method_of, pruning_methods
from ..layers.spread import Spread
from .base import FilterPruning
from .cut import cut_channels, without_pruning

OPTIONS = ("prune", "prune_rate", "prune_budget")  # of a network, beside those of the method


def attach_pruning(
    model: nn.Module,
    method: str,
    rate: float | None = None,
    budget: float | None = None,
    input_size: tuple[int, ...] | None = None,
    **options: Any,
) -> FilterPruning:
    """Make a network one that is pruned while it trains, in place; see :class:`FilterPruning` for the arguments.

    ``dgconv.train`` calls the hooks. A loop of your own does so through :func:`~dgconv.train.controllers_of`.
    """
    if method not in pruning_methods():
        raise unknown_name("pruning method", method, pruning_methods())
    if pruning_of(model) is not None:
        raise UserError("the model has a pruning method already; build a new one for another")
    if any(method_of(layer) or isinstance(layer, Spread) for layer in model.modules()):
        raise UserError("filter pruning is for networks of plain convolutions; name a model without a method")
    pruning: FilterPruning = pruning_methods()[method].make(model, rate, budget, input_size, **options)
    model.pruning = pruning
    if isinstance(config := getattr(model, "config", None), dict):
        given = {"prune": method, "prune_rate": rate, "prune_budget": budget, **options}
        config.update({key: value for key, value in given.items() if value is not None})
    return pruning


def pruning_of(model: nn.Module) -> FilterPruning | None:
    """The submodule that prunes a network, if there is one."""
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
    choice = pruning.as_many_as_chosen(model, pruning.rate)
    cut_channels(smaller, pruning.sets, choice, pruning.input_size)
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
    widths = cut_channels(smaller, pruning.sets, pruning.kept(), pruning.input_size)
    if isinstance(config := getattr(smaller, "config", None), dict):
        own = pruning_methods()[config["prune"]].options if "prune" in config else ()
        for key in (*OPTIONS, *own):
            config.pop(key, None)
        if widths:
            config["widths"] = config.get("widths", {}) | widths  # a network that was cut before has some
    return smaller
