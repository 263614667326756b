"""Fixing the choice of channels while a network trains: from then on an image decides by how much, not which.

Where a choice hardly depends on the image, nothing is lost, and what is chosen need not be found or packed again for
every image. A fixed choice needs no gate of its own: the saliencies of the other channels are made 0 for good.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..layers.controller import Controller, Place
from ..layers.dynamic_group_conv import DynamicGroupConv2d
from ..layers.gate import HeadGate
from ..layers.select import dynamic_layers

MEMORY = 0.99  # of the running mean of saliencies, a step
BELOW_ZERO = -1.0  # a bias with which a saliency is 0, whatever the image


class ChoiceFreezing(Controller):
    """From ``start`` on, a share of the training, each head keeps the channels whose mean saliency is greatest."""

    def __init__(self, model: nn.Module, start: float) -> None:
        self.layers = [layer for _, layer in dynamic_layers(model)]
        self.start = start
        for layer in self.layers:
            _check(layer)
        self.means = [torch.zeros_like(layer.generator.bias) for layer in self.layers]
        self.kept = [torch.ones_like(layer.generator.bias) for layer in self.layers]
        self.is_frozen = False

    def before_step(self, progress: float) -> None:
        if progress < self.start or self.is_frozen:
            return
        self.is_frozen = True
        for layer, mean, kept in zip(self.layers, self.means, self.kept, strict=True):
            kept.copy_(layer.gate.mask(mean[None])[0])
        self.after_update()

    def after_step(self, saliencies: Sequence[Tensor], place: Place) -> None:
        if not self.is_frozen:
            for mean, saliency in zip(self.means, saliencies, strict=True):
                mean.lerp_(saliency.mean(0).to(mean), 1 - MEMORY)

    def after_update(self) -> None:
        """Holds what is left out where it is, against momentum and decay."""
        with torch.no_grad():
            for layer, kept in zip(self.layers, self.kept, strict=True):
                silence_(layer, kept)

    def state(self) -> dict[str, Tensor]:
        parts = {f"mean{index}": mean for index, mean in enumerate(self.means)}
        parts |= {f"kept{index}": kept for index, kept in enumerate(self.kept)}
        return {name: part.clone() for name, part in parts.items()} | {"frozen": torch.tensor(self.is_frozen)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for index, (mean, kept) in enumerate(zip(self.means, self.kept, strict=True)):
            mean.copy_(state[f"mean{index}"])
            kept.copy_(state[f"kept{index}"])
        self.is_frozen = bool(state["frozen"])


@torch.no_grad()
def silence_(layer: DynamicGroupConv2d, kept: Tensor) -> None:
    """Makes the saliency of each channel 0 for every image where ``kept`` [H, C] is 0; nothing changes elsewhere."""
    layer.generator.weight2.mul_(kept[..., None])
    layer.generator.bias.copy_(torch.where(kept > 0, layer.generator.bias, BELOW_ZERO))


def _check(layer: DynamicGroupConv2d) -> None:
    if not isinstance(layer.gate, HeadGate) or layer.generator.signed:
        raise UserError(
            "`freeze_choice` is for head-wise gates: with one global threshold images differ in how many channels they "
            "keep. Use a _dgc model, or leave it out"
        )
