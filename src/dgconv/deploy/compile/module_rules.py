"""How each kind of layer becomes a step. A layer without a rule is left to torch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...layers import (
    DynamicGroupConv2d,
    FeatureBoostingConv2d,
    GlobalGate,
    HeadGate,
    SaliencyGenerator,
    StandardGroupConv2d,
)
from ...layers.fusible import BatchNormReLU2d, GroupedConv2d, HalvingAvgPool2d
from ...layers.indexed import IndexedGroupConv2d, IndexedLinear, SplitConv2d
from ...layers.odd_pixels import OddPixels
from ...layers.own_padding import PaddedConv2d
from ...layers.spread import Spread
from ..graph import Activation, BoostSpec, Concat, Conv, Elementwise, GateSpec, Norm
from . import operations
from .builder import Builder, NotNative, Value, after_window, has_forward_hooks, known, planes
from .fuse import scaled
from .operations import conv_step, norm_of

Rule = Callable[..., Any]  # rule(builder, module, input, ...)
RULES: dict[type[nn.Module], Rule] = {}
FORWARD = ("forward", "_conv_forward", "__call__", "_forward_plain", "_convolve", "_add_bias", "predict")
PARTS = (SaliencyGenerator, HeadGate, GlobalGate, nn.Linear, nn.BatchNorm2d, nn.SyncBatchNorm)  # of our layers


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of its class, or of a base class whose forward it did not change."""
    if has_forward_hooks(module) or any(name in vars(module) for name in FORWARD):
        return None
    for base in type(module).__mro__:
        if base in RULES:
            own = any(getattr(type(module), name, None) is not getattr(base, name, None) for name in FORWARD)
            return None if own else RULES[base]
    return None


def _rule(*kinds: type[nn.Module]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


@_rule(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
def _nothing(builder: Builder, module: nn.Module, x: Value) -> Value:
    return x


@_rule(nn.Conv2d, GroupedConv2d)
def _conv(builder: Builder, module: nn.Conv2d, x: Value) -> Value:
    x = planes(x)
    step = conv_step(x, module.weight, module.bias, module.stride, module.padding, module.dilation, module.groups)
    if module.padding_mode != "zeros":
        raise NotNative(f"padding_mode {module.padding_mode!r}", after_window(x, step))
    return builder.window(x, step)


@_rule(PaddedConv2d)
def _padded_conv(builder: Builder, module: PaddedConv2d, x: Value) -> Value:
    x = planes(x)
    step = conv_step(x, module.weight, module.bias, module.stride, module.padding, module.dilation, module.groups)
    return builder.window(x, replace(step, extra_padding=module.extra_padding, same=module.same))


@_rule(OddPixels)
def _odd_pixels(builder: Builder, module: OddPixels, x: Value) -> Value:
    """A depthwise convolution whose windows of two by two pixels look at the last one only."""
    x = planes(x)
    weight = torch.zeros(module.channels, 1, 2, 2)
    weight[:, :, 1, 1] = 1
    step = Conv(x.name, "", weight, stride=(2, 2), extra_padding=(1, 1), groups=module.channels)
    return builder.window(x, step)


@_rule(StandardGroupConv2d)
def _standard_group_conv(builder: Builder, module: StandardGroupConv2d, x: Value) -> Value:
    """The shuffle goes into the order of the weights: row o is output channel o."""
    out = _conv(builder, module, x)
    step = builder.steps[-1]
    assert isinstance(step, Conv)
    step.interleaved = True
    step.weight = interleave(step.weight, step.groups)
    step.bias = None if step.bias is None else interleave(step.bias, step.groups)
    return out


@_rule(IndexedGroupConv2d)
def _indexed_group_conv(builder: Builder, module: IndexedGroupConv2d, x: Value) -> Value:
    """Cut like a dynamic convolution: each group is a head that reads the channels it picks."""
    x = planes(x)
    if x.channels is None:
        raise NotNative("the channels of its input are not known beforehand", Value("", "planes", module.out_channels))
    out = _standard_group_conv(builder, module, x)
    step = builder.steps[-1]
    assert isinstance(step, Conv)
    picked = module.index.view(module.groups, -1)  # [G, C/G]
    weight = step.weight.new_zeros(module.out_channels, x.channels, *step.weight.shape[2:])
    for group, channels in enumerate(picked):
        weight[group :: module.groups, channels] = step.weight[group :: module.groups]
    step.weight, step.groups, step.interleaved = weight, 1, False
    step.picks = picked.sort(1).values.tolist()
    return out


@_rule(SplitConv2d)
def _split_conv(builder: Builder, module: SplitConv2d, x: Value) -> Value:
    """A convolution for each group, side by side, and then the outputs in their order.

    Outputs in no group come last, of the last convolution, with weights of zero.
    """
    x = planes(x)
    if x.channels is None:
        raise NotNative("the channels of its input are not known beforehand", Value("", "planes", len(module.order)))
    sizes = [len(conv.weight) for _, conv in module.groups]
    sizes[-1] += module.zeros
    parts = []
    for (inputs, conv), own in zip(module.groups, module.order.argsort().split(sizes), strict=True):
        parts.append(_conv(builder, conv, x))
        step = builder.steps[-1]
        assert isinstance(step, Conv)
        step.weight = conv.weight.new_zeros(len(own), x.channels, *conv.kernel_size)
        step.weight[: len(conv.weight), inputs] = conv.weight.detach()
        step.bias = None if module.bias is None else module.bias.detach()[own]
        step.picks = [inputs.sort().values.tolist()]
    joined = builder.add(Concat([part.name for part in parts], ""))
    name = builder.add(Elementwise(joined, "", order=module.order.tolist()))
    return replace(parts[0], name=name, channels=len(module.order))


@_rule(Spread)
def _spread(builder: Builder, module: Spread, x: Value) -> Value:
    """As a convolution of all channels of which only some win, the same for every image: the others are not computed.

    The convolution as it was then has no reader, unless something else reads it, too.
    """
    like = replace(planes(x), name="", channels=module.channels)
    if isinstance(module.layer, nn.BatchNorm2d) and rule_for(module.layer) is _batch_norm:
        norm: Norm | None = _norm(module.layer)
    elif rule_for(module.layer) is _conv:
        x, norm = _conv(builder, module.layer, x), None
        like = replace(x, name="", channels=module.channels)
    else:
        raise NotNative(f"it spreads a {type(module.layer).__name__}", like)
    conv = next((step for step in builder.steps if step.output == x.name), None)
    if not isinstance(conv, Conv) or conv.groups > 1 or conv.gate or conv.boost or conv.picks:
        raise NotNative("what it spreads is no plain convolution", like)
    some = scaled(conv, norm) if norm else conv
    channels, places = module.channels, module.places
    weight = some.weight.new_zeros(channels, *some.weight.shape[1:]).index_copy(0, places, some.weight)
    bias = None if some.bias is None else some.bias.new_zeros(channels).index_copy(0, places, some.bias)
    zeros = torch.zeros(channels)
    boost = BoostSpec(torch.zeros(weight.shape[:2]), zeros.index_fill(0, places, 1.0), len(places), zeros)
    return replace(like, name=builder.add(replace(some, output="", weight=weight, bias=bias, boost=boost)))


def _check_parts(layer: nn.Module, like: Value) -> None:
    """A gate or generator of the user's own, or one with hooks, does more than the native step knows of."""
    for name, part in layer.named_children():
        if name == "parametrizations":  # what they make of the weights is read like any weight
            continue
        if type(part) not in PARTS or "forward" in vars(part):
            raise NotNative(f"its {name} is a {type(part).__name__} with a forward of its own", like)
        if has_forward_hooks(part):
            raise NotNative(f"its {name} has forward hooks", like)


def interleave(x: Tensor, groups: int) -> Tensor:
    """Blocks of rows, one after the other, to one row of each in turn."""
    return x.unflatten(0, (groups, -1)).transpose(0, 1).flatten(0, 1)


@_rule(DynamicGroupConv2d)
def _dynamic_group_conv(builder: Builder, module: DynamicGroupConv2d, x: Value, means: Any = None) -> Value:
    x = planes(x)
    generator, gate = module.generator, module.gate
    step = Conv(
        x.name,
        "",
        module.weight.detach(),
        None if module.bias is None else module.bias.detach(),
        module.stride,
        module.padding,
        module.extra_padding,
        module.dilation,
        same=module.same,
    )
    _check_parts(module, after_window(x, step))
    limits = gate.spec()
    if isinstance(limits, str):
        raise NotNative(limits, after_window(x, step))
    step.gate = GateSpec(generator.weight1.detach(), generator.weight2.detach(), generator.bias.detach(), **limits)
    return builder.window(x, step)


@_rule(FeatureBoostingConv2d)
def _feature_boosting_conv(builder: Builder, module: FeatureBoostingConv2d, x: Value) -> Value:
    x = planes(x)
    if module.groups > 1:
        raise NotNative("its winners are of several groups", Value("", "planes", module.out_channels))
    if module.beta_for == "all":
        raise NotNative("its suppressed outputs are not zero", Value("", "planes", module.out_channels))
    _check_parts(module, Value("", "planes", module.out_channels))
    norm = _norm(module.norm)
    out = _conv(builder, module, x)
    step = builder.steps[-1]
    assert isinstance(step, Conv)
    generator = module.generator
    builder.steps[-1] = replace(
        scaled(step, norm),
        boost=BoostSpec(
            generator.weight.detach(), generator.bias.detach(), int(module.gate.keep), module.shift.detach()
        ),
    )
    return out


@_rule(nn.BatchNorm2d)
def _batch_norm(builder: Builder, module: nn.BatchNorm2d, x: Value) -> Value:
    return builder.elementwise(planes(x), _norm(module))


@_rule(nn.BatchNorm1d, nn.SyncBatchNorm)
def _batch_norm_of_any_shape(builder: Builder, module: nn.BatchNorm1d | nn.SyncBatchNorm, x: Value) -> Value:
    return builder.elementwise(known(x), _norm(module))


@_rule(BatchNormReLU2d)
def _batch_norm_relu(builder: Builder, module: BatchNormReLU2d, x: Value, and_more: bool = False) -> Any:
    out = builder.elementwise(planes(x), _norm(module), activation="relu")
    return (out, x, None) if and_more else out


def _norm(module: nn.BatchNorm1d | nn.BatchNorm2d | nn.SyncBatchNorm) -> Norm:
    if module.running_mean is None or module.running_var is None:
        raise NotNative("it uses the statistics of each batch")
    return norm_of(module.running_mean, module.running_var, module.weight, module.bias, module.eps)


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.SiLU: "silu",
    nn.Hardswish: "hard_swish",
    nn.Hardsigmoid: "hard_sigmoid",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
}


@_rule(*ACTIVATIONS)
def _activation(builder: Builder, module: nn.Module, x: Value) -> Value:
    kind = next(kind for kind in ACTIVATIONS if isinstance(module, kind))
    return builder.elementwise(known(x), activation=ACTIVATIONS[kind])


@_rule(nn.GELU)
def _gelu(builder: Builder, module: nn.GELU, x: Value) -> Value:
    return operations.gelu(builder, x, module.approximate)


@_rule(nn.LayerNorm)
def _layer_norm(builder: Builder, module: nn.LayerNorm, x: Value) -> Value:
    return operations.layer_norm(builder, x, module.normalized_shape, module.weight, module.bias, module.eps)


@_rule(nn.ZeroPad2d)
def _zero_pad(builder: Builder, module: nn.ZeroPad2d, x: Value) -> Value:
    return operations.pad(builder, x, module.padding)


@_rule(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d)
def _upsample(builder: Builder, module: nn.Upsample, x: Value) -> Value:
    return operations.interpolate(builder, x, module.size, module.scale_factor, module.mode, module.align_corners)


@_rule(nn.MaxPool2d)
def _max_pool(builder: Builder, module: nn.MaxPool2d, x: Value) -> Value:
    return operations.max_pool(
        builder, x, module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode,
        module.return_indices,
    )  # fmt: skip


@_rule(nn.AvgPool2d, HalvingAvgPool2d)
def _average_pool(builder: Builder, module: nn.AvgPool2d, x: Value) -> Value:
    return operations.average_pool(
        builder, x, module.kernel_size, module.stride, module.padding, module.ceil_mode, module.count_include_pad,
        module.divisor_override,
    )  # fmt: skip


@_rule(nn.AdaptiveAvgPool2d)
def _adaptive_average_pool(builder: Builder, module: nn.AdaptiveAvgPool2d, x: Value) -> Value:
    return operations.adaptive_average_pool(builder, x, module.output_size)


@_rule(nn.Flatten)
def _flatten(builder: Builder, module: nn.Flatten, x: Value) -> Value:
    return operations.flatten(builder, x, module.start_dim, module.end_dim)


@_rule(nn.Linear)
def _linear(builder: Builder, module: nn.Linear, x: Value) -> Value:
    return operations.linear(builder, x, module.weight, module.bias)


@_rule(IndexedLinear)
def _indexed_linear(builder: Builder, module: IndexedLinear, x: Value) -> Value:
    weight = module.weight.new_zeros(module.out_features, module.picked_from)
    return operations.linear(builder, x, weight.index_copy(1, module.index, module.weight.detach()), module.bias)
