"""What single images cost."""

from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn

from ..layers.select import dynamic_layers
from .macs import count_macs


class ImageCost:
    """MACs of single images (convention ``paper``), by the channels that each of them kept.

    ::

        with ImageCost(model, input_size) as cost:
            model(images)
        cost.macs  # [B]
    """

    def __init__(self, model: nn.Module, input_size: tuple[int, ...]) -> None:
        self.layers = dict(dynamic_layers(model))
        self.fixed, self.dense = 0.0, {}
        for layer in count_macs(model, input_size).layers:
            if layer.name in self.layers and layer.kept_share is not None:
                self.dense[layer.name] = layer.dense_macs
                self.fixed += layer.macs - layer.kept_share * layer.dense_macs  # the generator
            else:
                self.fixed += layer.macs
        self.macs = torch.zeros(0)
        self._stack = ExitStack()

    def __enter__(self) -> "ImageCost":
        spent: Tensor | None = None

        def add(name: str, saliency: Tensor, mask: Tensor) -> None:
            nonlocal spent
            macs = self.dense[name] * mask.flatten(1).double().mean(1)
            spent = macs if spent is None else spent + macs
            self.macs = spent + self.fixed

        for name, layer in self.layers.items():
            self._stack.enter_context(layer.gate.observed_by(partial(add, name)))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
