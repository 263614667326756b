"""Evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.fx import GraphModule

from ..errors import UserError


def check_has_modes(model: nn.Module) -> None:
    """Refuse what ``torch.export`` gives back: operations instead of layers, with an ``eval`` that only raises."""
    if isinstance(model, GraphModule) and "eval" in vars(model):
        raise UserError("a network of torch.export has neither layers nor modes; give the network that was exported")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode, and then each module into its own again: a batch norm that was frozen in a
    network under training stays so."""
    check_has_modes(model)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        model.train(modes[model])
        for module, mode in modes.items():
            module.training = mode
