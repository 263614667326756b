"""SGD with Nesterov momentum, in the form that the device and a captured graph need."""

from typing import Any

import torch
from torch import Tensor, nn

from ..layers.method import MethodLayer
from .recipe import Recipe


def make_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.SGD:
    """On a GPU one kernel, and the learning rate in a tensor: a schedule then reaches a graph captured before."""
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.SGD(
        _parameter_groups(model),
        lr=torch.tensor(recipe.learning_rate, device=device) if on_gpu else recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
        fused=on_gpu or None,
    )
    if recipe.momentum > 0:  # there from the beginning, at rest, so that the first step is like every other
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def momenta(model: nn.Module, optimizer: torch.optim.SGD) -> dict[str, Tensor]:
    """By parameter name."""
    return {
        name: optimizer.state[parameter]["momentum_buffer"]
        for name, parameter in model.named_parameters()
        if "momentum_buffer" in optimizer.state[parameter]
    }


def _parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """All parameters, and apart from them those that a method wants without weight decay."""
    undecayed = {
        id(getattr(layer, name))
        for layer in model.modules()
        if isinstance(layer, MethodLayer)
        for name in layer.undecayed
    }
    groups: list[dict[str, Any]] = [{"params": [p for p in model.parameters() if id(p) not in undecayed]}]
    if undecayed:
        groups.append({"params": [p for p in model.parameters() if id(p) in undecayed], "weight_decay": 0.0})
    return groups
