"""What is left of a method when training is over: ordinary layers, and no mask."""

import torch
from torch import nn

from ..errors import UserError
from .gate import HeadGate
from .indexed import IndexedLinear
from .method import MethodLayer
from .swap import swap_


def to_static_(model: nn.Module) -> int:
    """Swap every :class:`MethodLayer` of a network for its static form, in place; returns how many were swapped.

    The network computes in eval mode what it computed before, now with plain layers. Layers whose choice depends on the
    image stay as they are. The result cannot go on learning its connections: keep the original to train.
    """
    if isinstance(model, MethodLayer):
        raise UserError(f"the model is itself a {type(model).__name__}; its to_static() returns the new layer")
    forms = {layer: layer.to_static() for layer in model.modules() if isinstance(layer, MethodLayer)}
    changed: dict[nn.Module, nn.Module] = {}
    for layer, form in forms.items():
        if form is not layer:
            changed[layer] = form.train(layer.training)
    swap_(model, changed)
    return len(changed)


@torch.no_grad()
def halve_classifier(model: nn.Module) -> None:
    """Keep the half of the last linear layer's features that it weighs most, by the sum of absolute weights.

    CondenseNet does so when its groups are converted, and counts its MACs with it.
    """
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not layers or not layers[-1][0]:
        raise UserError(f"{type(model).__name__} holds no nn.Linear whose features could be halved")
    name, linear = layers[-1]
    if isinstance(linear, IndexedLinear):
        raise UserError(f"the classifier {name!r} is halved already")
    use = linear.weight.abs().sum(0, keepdim=True)  # [1, features]
    kept = HeadGate(linear.in_features, 0.5, device=use.device).mask(use)
    model.set_submodule(name, IndexedLinear(linear, kept[0].nonzero().flatten()).train(linear.training))
