"""What one call of a layer costs, kind by kind; :mod:`dgconv.cost.macs` tells the conventions.

The layers of a method do a share of an undivided convolution's work: the record of the method has the rule. Where that
depends on the image it is measured on the layer's real input; without images the layer's options tell what it should
come to.
"""

import math
from typing import NamedTuple

from torch import nn

from ..layers import DynamicGroupConv2d
from ..layers.fusible import BatchNormReLU2d, GroupedConv2d
from ..layers.method import MacCall, MacRule, method_of
from ..ops.geometry import pair

ACTIVATIONS = (nn.ReLU, nn.ReLU6, BatchNormReLU2d)
GLOBAL_POOLINGS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
WINDOW_POOLINGS = (nn.AvgPool2d, nn.MaxPool2d)
ALWAYS_RULED = (nn.Conv2d, nn.Linear, DynamicGroupConv2d)  # in either convention
FORWARD = ("forward", "_conv_forward", "__call__")
_RULES: dict[type[nn.Module], MacRule] = {}


def register_rule(kind: type[nn.Module], rule: MacRule) -> None:
    """How to count a layer of your own that is no registered method: see :data:`~dgconv.layers.method.MacRule`."""
    _RULES[kind] = rule


class Cost(NamedTuple):
    """MACs of one image, what they would be undivided, and for a layer that saves the share of that it computes."""

    macs: float
    dense_macs: float
    kept_share: float | None = None


def cost_of(module: nn.Module, call: MacCall) -> Cost | None:
    """The cost of a layer; None where no rule fits."""
    if rule := rule_for(module):
        dense = _undivided(module, call)
        share, overhead = rule(module, call)
        return Cost(dense * share + overhead, dense, share)
    if isinstance(module, nn.Conv2d):
        macs = _undivided(module, call)
        return Cost(macs, macs)
    batch = max(1, call.x.shape[0])
    with_extras = call.convention == "authors"
    if isinstance(module, nn.Linear):
        macs = module.in_features * call.out.numel() // batch
        macs += call.out.numel() // batch if with_extras and module.bias is not None else 0
        return Cost(macs, macs)
    if with_extras and isinstance(module, ACTIVATIONS + GLOBAL_POOLINGS):
        return Cost(call.x[0].numel(), call.x[0].numel())
    if with_extras and isinstance(module, WINDOW_POOLINGS):
        macs = call.out[0].numel() * math.prod(pair(module.kernel_size))
        return Cost(macs, macs)
    return None


def _undivided(module: nn.Module, call: MacCall) -> int:
    """MACs of the convolution that a layer is or stands for: one that is divided says how many inputs that has."""
    weight = module.get_parameter("weight")
    inputs: int = getattr(module, "undivided_inputs", weight.shape[1])
    return inputs * math.prod(weight.shape[2:]) * call.out[0].numel()


def rule_for(module: nn.Module) -> MacRule | None:
    """The rule of its class or of the nearest one that it is derived from, by itself or as the layer of a method."""
    own = next((_RULES[kind] for kind in type(module).__mro__ if kind in _RULES), None)
    method = method_of(module)
    return own or (method.macs if method else None)


def has_own_forward(module: nn.Module) -> bool:
    """Whether a convolution without a rule does something else than torch's own, or may: its class tells."""
    if not isinstance(module, nn.Conv2d) or rule_for(module) or isinstance(module, GroupedConv2d):
        return False
    in_class = any(getattr(type(module), name) is not getattr(nn.Conv2d, name) for name in FORWARD)
    return in_class or any(name in vars(module) for name in FORWARD)
