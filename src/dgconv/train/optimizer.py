"""SGD with Nesterov momentum, in the form that the device and a captured graph need."""

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..layers.method import MethodLayer
from ..layers.select import dynamic_layers
from ..pruning import FilterPruning
from .tables import TrainingTable


def make_optimizer(model: nn.Module, training: TrainingTable, device: torch.device, steps: int) -> torch.optim.SGD:
    """Makes SGD: on a GPU one kernel, and the learning rate in a tensor: a schedule then reaches a graph captured
    before.

    Args:
        steps: of the whole training.
    """
    if training.generator_weight_decay is not None and not any(True for _ in dynamic_layers(model)):
        raise UserError("`generator_weight_decay` is for networks with dynamic layers (_dgc, _dgcg); leave it out")
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.SGD(
        _parameter_groups(model, generator_weight_decay(training, steps)),
        lr=torch.tensor(training.learning_rate, device=device) if on_gpu else training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=training.momentum > 0,
        fused=on_gpu or None,
    )
    if training.momentum > 0:  # there from the beginning, at rest, so that the first step is like every other
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def generator_weight_decay(training: TrainingTable, steps: int) -> float | None:
    r"""The weight decay of the saliency generators; None if it is that of all other weights.

    A weight w that gets no gradient goes as :math:`\dot w = -\eta \lambda w / (1 - \mu)` with learning rate, decay and
    momentum, so a training of T steps with a learning rate that falls along half a cosine divides it by e

    .. math:: s = T \, \frac{\eta_0}{2} \, \frac{\lambda}{1 - \mu}

    times. With the paper's recipe for CIFAR s is 5.9: enough for W1 and W2 to all but vanish, and for the bias to tell
    channels that are needed from others. A short training with the same decay does neither.
    """
    if training.generator_shrinkage is None:
        return training.generator_weight_decay
    return training.generator_shrinkage * (1 - training.momentum) / (steps * training.learning_rate / 2)


def momenta(model: nn.Module, optimizer: torch.optim.SGD) -> dict[str, Tensor]:
    """The optimizer's momenta by parameter name."""
    return {
        name: optimizer.state[parameter]["momentum_buffer"]
        for name, parameter in model.named_parameters()
        if "momentum_buffer" in optimizer.state[parameter]
    }


def _parameter_groups(model: nn.Module, generator_weight_decay: float | None) -> list[dict[str, Any]]:
    """All parameters, and apart from them those with a weight decay of their own.

    These are what a method wants without any, and the saliency generators if the recipe names one for them.
    """
    own_decay = {
        id(getattr(layer, name)): 0.0
        for layer in model.modules()
        if isinstance(layer, MethodLayer | FilterPruning)
        for name in layer.undecayed
    }
    if generator_weight_decay is not None:
        own_decay |= {
            id(p): generator_weight_decay for _, layer in dynamic_layers(model) for p in layer.generator.parameters()
        }
    groups: list[dict[str, Any]] = [{"params": [p for p in model.parameters() if id(p) not in own_decay]}]
    for decay in sorted(set(own_decay.values())):
        chosen = [p for p in model.parameters() if own_decay.get(id(p)) == decay]
        groups.append({"params": chosen, "weight_decay": decay})
    return groups
