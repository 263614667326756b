"""All dynamic layers of a network at once."""

from collections.abc import Iterator

from torch import nn

from ..errors import UserError
from .dynamic_group_conv import DynamicGroupConv2d


def dynamic_layers(model: nn.Module) -> Iterator[tuple[str, DynamicGroupConv2d]]:
    """Each dynamic layer with its name, once even if shared, in module order."""
    for name, module in model.named_modules():
        if isinstance(module, DynamicGroupConv2d):
            yield name, module


def set_pruning_rate(model: nn.Module, rate: float) -> None:
    """A new target rate for every dynamic layer; see :meth:`DynamicGroupConv2d.set_pruning_rate`."""
    layers = [layer for _, layer in dynamic_layers(model)]
    if not layers:
        raise UserError(
            f"{type(model).__name__} has no DynamicGroupConv2d to set a pruning rate of; "
            "build it with dynamic layers, or put them in with convert_"
        )
    for layer in layers:
        layer.set_pruning_rate(rate)
