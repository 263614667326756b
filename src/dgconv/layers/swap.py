"""One layer for another, wherever a network holds it."""

from torch import nn


def swap_(model: nn.Module, layers: dict[nn.Module, nn.Module]) -> None:
    """Put each new layer wherever its old one is held; ``named_children`` gives a shared one only once."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in layers:
                setattr(parent, name, layers[child])
