"""What one call of a layer costs, kind by kind; :mod:`dgconv.analysis.macs` tells the conventions.

Some layers do a share of an undivided convolution's work. Where that depends on the image it is measured on the layer's
real input; without images the layer's options tell what it should come to.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from ..layers import (
    ChannelGatingConv2d,
    DynamicGroupConv2d,
    FeatureBoostingConv2d,
    FullyLearnableGroupConv2d,
    HeadGate,
    LearnedGroupConv2d,
    LowCostCollaborativeConv2d,
    SaliencyGenerator,
    StandardGroupConv2d,
    keep_count,
)
from ..layers.fusible import BatchNormReLU2d
from ..layers.indexed import IndexedGroupConv2d
from ..ops.geometry import pair

Convention = Literal["paper", "authors"]
ACTIVATIONS = (nn.ReLU, nn.ReLU6, BatchNormReLU2d)
GLOBAL_POOLINGS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
WINDOW_POOLINGS = (nn.AvgPool2d, nn.MaxPool2d)
ALWAYS_RULED = (nn.Conv2d, nn.Linear, DynamicGroupConv2d)  # in either convention


class Call(NamedTuple):
    """A layer's input ``[B, C, height, width]`` and output, and how to count."""

    x: Tensor
    out: Tensor
    convention: Convention
    measured: bool  # the input comes from real images


class Cost(NamedTuple):
    """MACs of one image, what they would be undivided, and for a layer that saves the share of that it computes."""

    macs: float
    dense_macs: float
    kept_share: float | None = None


def cost_of(module: nn.Module, call: Call) -> Cost | None:
    """None where no rule fits."""
    if isinstance(module, nn.Conv2d | DynamicGroupConv2d):
        plain = module.weight[0].numel() * call.out[0].numel()
        if rule := rule_for(module):
            dense = _undivided(module, call) if isinstance(module, StandardGroupConv2d) else plain
            share, overhead = rule(module, call)
            return Cost(dense * share + overhead, dense, share)
        return Cost(plain, plain)
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


# --- layers that do a share of the work: each rule gives the share, and what comes on top ---


def _dynamic_group_conv(layer: DynamicGroupConv2d, call: Call) -> tuple[float, float]:
    generator, gate = _saliency_generator(layer, call), layer.gate
    if not isinstance(gate, HeadGate):  # the images decide how many are kept
        if call.measured:
            return float(gate.mask(layer.generator(call.x)).float().mean()), generator
        return 1 - layer.pruning_rate, generator
    target = gate.count_at(layer.pruning_rate)
    keep = _kept_now(gate, target)
    is_fraction = call.convention == "authors" and keep == target
    return 1 - layer.pruning_rate if is_fraction else keep / layer.in_channels, generator


def _kept_now(gate: HeadGate, target: int) -> int:
    """A schedule or a checkpoint may have moved the gate; on the meta device there are only options."""
    return target if gate.keep.is_meta else int(gate.keep)


def _saliency_generator(layer: DynamicGroupConv2d, call: Call) -> float:
    """One of your own is taken to use each of its weights once for an image."""
    generator = layer.generator
    if not isinstance(generator, SaliencyGenerator):
        return sum(parameter.numel() for parameter in generator.parameters() if parameter.dim() > 1)
    macs = layer.heads * 2 * layer.in_channels * generator.hidden
    if call.convention == "authors":
        macs += call.x[0].numel() + layer.heads * (generator.hidden + 3 * layer.in_channels)
    return macs


def _standard_group_conv(layer: StandardGroupConv2d, call: Call) -> tuple[float, float]:
    return 1 / layer.groups, 0


def _indexed_group_conv(layer: IndexedGroupConv2d, call: Call) -> tuple[float, float]:
    """Groups may read some inputs twice, and leave others out."""
    return layer.in_channels / (layer.groups * layer.picked_from), 0


def _undivided(layer: StandardGroupConv2d, call: Call) -> int:
    inputs = layer.picked_from if isinstance(layer, IndexedGroupConv2d) else layer.in_channels
    return inputs * math.prod(layer.kernel_size) * call.out[0].numel()


def _learned_group_conv(layer: LearnedGroupConv2d, call: Call) -> tuple[float, float]:
    """As it is now on images; without, as it will be when it is condensed."""
    return float(layer.mask.float().mean()) if call.measured else layer.final_keep / layer.in_channels, 0


def _fully_learnable_group_conv(layer: FullyLearnableGroupConv2d, call: Call) -> tuple[float, float]:
    return layer.share(), 0


def _feature_boosting(layer: FeatureBoostingConv2d, call: Call) -> tuple[float, float]:
    """The winners, times the input channels that are not zero all over; and the generator."""
    generator = layer.in_channels * layer.out_channels
    if call.convention == "authors":
        generator += call.x[0].numel() + 3 * layer.out_channels
    if not call.measured:
        target = keep_count(layer.out_channels, 1 - layer.density)
        return _kept_now(layer.gate, target) / layer.out_channels, generator
    inputs = call.x.flatten(2).any(2).float().mean(1)  # [B]
    outputs = layer.winners(call.x).float().mean(1)
    return float((inputs * outputs).mean()), generator


def _channel_gating(layer: ChannelGatingConv2d, call: Call) -> tuple[float, float]:
    """The base path everywhere, the other inputs where it opens: a normal distribution's part above the target."""
    base = layer.base_inputs / layer.in_channels
    nominal = 1 - NormalDist().cdf(layer.target)
    opened = float(layer.gate(layer.base_path(call.x)).mean()) if call.measured else nominal
    return base + (1 - base) * opened, 0


def _low_cost_collaboration(layer: LowCostCollaborativeConv2d, call: Call) -> tuple[float, float]:
    """The branch everywhere, the convolution where the branch is not zero."""
    if not layer.normalizes:
        return 1.0, 0
    branch = 1 / math.prod(layer.kernel_size)
    needed = float((layer.collaborate(call.x) > 0).float().mean()) if call.measured else layer.open_share
    return branch + needed, 0


RULES: dict[type[nn.Module], Callable[[Any, Call], tuple[float, float]]] = {
    DynamicGroupConv2d: _dynamic_group_conv,
    StandardGroupConv2d: _standard_group_conv,
    IndexedGroupConv2d: _indexed_group_conv,
    LearnedGroupConv2d: _learned_group_conv,
    FullyLearnableGroupConv2d: _fully_learnable_group_conv,
    FeatureBoostingConv2d: _feature_boosting,
    ChannelGatingConv2d: _channel_gating,
    LowCostCollaborativeConv2d: _low_cost_collaboration,
}


def rule_for(module: nn.Module) -> Callable[[Any, Call], tuple[float, float]] | None:
    return next((RULES[kind] for kind in type(module).__mro__ if kind in RULES), None)


def needs_images(model: nn.Module) -> bool:
    """Whether the cost can only be measured: a layer of the model decides image by image how much to compute."""
    kinds = (FeatureBoostingConv2d, ChannelGatingConv2d, LowCostCollaborativeConv2d)
    return any(
        isinstance(module, kinds) or (isinstance(module, DynamicGroupConv2d) and not isinstance(module.gate, HeadGate))
        for module in model.modules()
    )
