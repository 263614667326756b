"""Evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """And then each module in its own mode again: a batch norm that was frozen in a network under training stays so."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        model.train(modes[model])
        for module, mode in modes.items():
            module.training = mode
