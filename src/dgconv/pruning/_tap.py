"""A look into a network while it runs, for methods that need more than its weights."""

from typing import Any, Protocol

from torch import nn


class Tapped(Protocol):
    """What is shown the outputs of layers: the pruning of a network."""

    def tapped(self, name: str, out: Any, is_training: bool) -> Any: ...


class Tap:
    """A forward hook that hands what a layer makes to the network's pruning, and passes on what that returns.

    It is copied with its network, to whose copy it then belongs, and goes with the pruning.
    """

    def __init__(self, pruning: Tapped, name: str) -> None:
        self.pruning, self.name = pruning, name

    def __call__(self, layer: nn.Module, inputs: object, out: Any) -> Any:
        return self.pruning.tapped(self.name, out, layer.training)

    @staticmethod
    def put_on(model: nn.Module, pruning: Tapped, layers: list[str]) -> None:
        for name in layers:
            model.get_submodule(name).register_forward_hook(Tap(pruning, name))


def take_off_taps(model: nn.Module) -> None:
    for layer in model.modules():
        for number, hook in list(layer._forward_hooks.items()):
            if isinstance(hook, Tap):
                del layer._forward_hooks[number]
