"""Which inputs of a layer are always zero, because of what is pruned before it: found by running the network.

Every weight becomes positive, but for those that are pruned, which become zero, and so does the image. Then nothing can
cancel out: a channel is zero if and only if no weight and no shift of a batch norm reaches it. An activation that makes
something of zero makes something of it here, too.
"""

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from .channels import ChannelSet

GAIN = 0.1  # of a batch norm, so that sums of many blocks stay numbers


def always_zero(
    model: nn.Module, sets: Sequence[ChannelSet], kept: Sequence[Tensor], input_size: tuple[int, ...]
) -> dict[str, Tensor]:
    """The inputs that are zero for every image, by layer; of undivided convolutions and linear layers."""
    skeleton = copy.deepcopy(model).to("meta").to_empty(device="cpu").eval()
    _make_positive(skeleton)
    for channel_set, keep in zip(sets, kept, strict=True):
        for member in channel_set.having("filters", "norm"):
            layer = member.of(skeleton)
            for values in (layer.weight, layer.bias):
                if values is not None:
                    values.data[member.channels[~keep].flatten()] = 0
    seen: dict[str, Tensor] = {}
    for name, layer in skeleton.named_modules():
        if type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.groups == 1):
            layer.register_forward_pre_hook(partial(_note, seen, name))
    with torch.no_grad():
        skeleton(torch.ones(1, *input_size))
    return seen


def _make_positive(model: nn.Module) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(1)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.weight.data.fill_(1 / layer.weight[0].numel())
        elif isinstance(layer, nn.BatchNorm2d):
            layer.weight.data.fill_(GAIN)
            if layer.running_mean is not None:
                layer.running_mean.zero_()


def _note(seen: dict[str, Tensor], name: str, layer: nn.Module, inputs: tuple[Tensor]) -> None:
    """A layer that runs twice reads what either run gives it."""
    x = inputs[0]
    zero = (x == 0).flatten(2).all(2).all(0) if isinstance(layer, nn.Conv2d) else (x == 0).flatten(0, -2).all(0)
    seen[name] = zero & seen[name] if name in seen else zero
