"""Every step with torch: what it means, what the native ones are tested against, and what runs without a compiler."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...layers import HeadGate
from .. import graph as kinds
from ..graph import BYTE_STEPS, Activation, Graph, Step
from . import integer_steps
from .shapes import padding_of


def run(graph: Graph, x: Tensor) -> Tensor:
    """The whole graph."""
    values: dict[str, Any] = {graph.input: x}
    for step in graph.steps:
        values[step.output] = run_step(step, values)
    return values[graph.output]


def run_step(step: Step, values: dict[str, Any]) -> Any:
    """The value that one step writes, from those that it reads."""
    match step:
        case kinds.Torch():  # first, for there can be many short ones
            return step.function(*[values[name] for name in step.inputs])
        case _ if isinstance(step, BYTE_STEPS):
            return integer_steps.run_step(step, values, select)
        case kinds.Conv():
            return conv(step, values[step.input], None if step.residual is None else values[step.residual])
        case kinds.Pool():
            x = normalize(values[step.input], step.before)
            if step.kind == "max":
                return F.max_pool2d(x, step.kernel, step.stride, step.padding)
            return F.avg_pool2d(x, step.kernel, step.stride, step.padding)
        case kinds.GlobalPool():
            return normalize(values[step.input], step.before).mean((2, 3))
        case kinds.Linear():
            weight = step.weight if step.scale is None else step.weight * step.scale[:, None]
            return activate(F.linear(values[step.input], weight, step.bias), step.activation)
        case kinds.Elementwise():
            x = values[step.input] if step.order is None else values[step.input][:, step.order]
            x = normalize(x, step.norm)
            if step.factor is not None:
                x = x * values[step.factor].view(*x.shape[:2], *[1] * (x.dim() - 2))
            return activate(x if step.other is None else x + values[step.other], step.activation)
        case kinds.LayerNorm():
            pixels = values[step.input].movedim(1, -1)
            result = F.layer_norm(pixels, step.scale.shape, step.scale, step.shift, step.epsilon)
            return result.movedim(-1, 1).contiguous()
        case kinds.Resize():
            return resize(step, values[step.input], None if step.like is None else values[step.like])
        case kinds.Pad():
            (top, left), (bottom, right) = step.padding, step.end_padding
            return F.pad(values[step.input], (left, right, top, bottom))
        case kinds.Slice():
            return values[step.input][:, step.first : step.first + step.count]
        case kinds.Concat():
            return torch.cat([values[name] for name in step.inputs], 1)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "hard_swish": F.hardswish,
    "hard_sigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


def activate(x: Tensor, activation: Activation) -> Tensor:
    return ACTIVATIONS[activation](x)


def resize(step: kinds.Resize, x: Tensor, like: Tensor | None) -> Tensor:
    size = step.size if like is None else (*like.shape[2:], 1, 1)[:2]  # a row is one pixel
    corners = step.aligns_corners if step.kind == "bilinear" else None
    return F.interpolate(x, size, step.scale, step.kind, corners)


def normalize(x: Tensor, norm: kinds.Norm | None) -> Tensor:
    if norm is None:
        return x
    shape = (-1, *[1] * (x.dim() - 2))  # by channel, of planes or rows
    return activate(torch.addcmul(norm.shift.view(shape), x, norm.scale.view(shape)), norm.activation)


def conv(step: kinds.Conv, x: Tensor, residual: Tensor | None) -> Tensor:
    if step.expansion is not None:
        x = conv(step.expansion, x, None)
    x = normalize(x, step.before)
    if step.gate is None:
        out = _static_conv(step, x)
    else:
        out = _dynamic_conv(step, x, *select(step.gate, x.mean((2, 3))))
        out = out if step.bias is None else out + step.bias[:, None, None]
    if step.boost is not None:
        out = boost(step.boost, x.abs().mean((2, 3)), out)
    return activate(out if residual is None else out + residual, step.activation)


def select(gate: kinds.GateSpec, pooled: Tensor) -> tuple[Tensor, Tensor]:
    """The saliencies of all channels, [B, H, C], and which of them each head keeps.

    A NaN ranks last in the head-wise gate and never passes the global one; nothing is raised.
    """
    saliency = scores(gate, pooled)
    if gate.threshold is not None:
        return saliency, saliency.abs() >= gate.threshold
    saliency = F.relu(saliency)
    if gate.fixed is not None:
        channels = torch.tensor(gate.fixed, dtype=torch.int64, device=saliency.device).expand(saliency.shape)
        every = saliency.new_zeros(*saliency.shape[:2], gate.weight1.shape[-1])
        return every.scatter(-1, channels, saliency), every.bool().scatter(-1, channels, True)
    return saliency, _greatest(saliency, gate.keep or 0)


def scores(gate: kinds.GateSpec, pooled: Tensor) -> Tensor:
    """What the generator makes of the means of channels, [B, H, C]."""
    hidden = F.relu(torch.einsum("hdc,bc->bhd", gate.weight1.to(pooled.dtype), pooled))
    if gate.scale is not None:
        hidden = hidden * gate.scale
    return torch.einsum("hcd,bhd->bhc", gate.weight2.to(pooled.dtype), hidden) + gate.bias


def boost(spec: kinds.BoostSpec, pooled: Tensor, out: Tensor) -> Tensor:
    """All outputs were computed; those that did not win become zero."""
    saliency = F.relu(F.linear(pooled, spec.weight, spec.bias))
    won = _greatest(saliency, spec.keep)
    scale, shift = (x.where(won, 0)[:, :, None, None] for x in (saliency, spec.shift))
    return out * scale + shift


def _greatest(saliency: Tensor, keep: int) -> Tensor:
    rule = HeadGate(saliency.shape[-1], 0, device=saliency.device)
    rule.keep.fill_(keep)
    return rule.mask(saliency)


def _static_conv(step: kinds.Conv, x: Tensor) -> Tensor:
    if not step.interleaved:
        return _convolve(step, x, step.weight, step.bias, step.groups)
    by_group = torch.arange(len(step.weight), device=step.weight.device).view(-1, step.groups).T.flatten()
    bias = None if step.bias is None else step.bias[by_group]
    return _interleave(_convolve(step, x, step.weight[by_group], bias, step.groups), step.groups)


def _dynamic_conv(step: kinds.Conv, x: Tensor, saliency: Tensor, kept: Tensor) -> Tensor:
    """Each image and head convolves its kept channels, and only those."""
    heads = saliency.shape[1]
    images = []
    for image in range(len(x)):
        outputs = []
        for head in range(heads):
            channels, weight = kept[image, head].nonzero().flatten(), step.weight[head::heads]
            if len(channels):
                scaled = x[image].index_select(0, channels) * saliency[image, head, channels, None, None]
                weight = weight.index_select(1, channels)
            else:  # torch convolves one channel at least
                scaled, weight = torch.zeros_like(x[image, :1]), torch.zeros_like(weight[:, :1])
            outputs.append(_convolve(step, scaled[None], weight))
        images.append(_interleave(torch.cat(outputs, 1), heads))
    return torch.cat(images) if images else _convolve(step, x, step.weight)


def _convolve(step: kinds.Conv, x: Tensor, weight: Tensor, bias: Tensor | None = None, groups: int = 1) -> Tensor:
    padding, extra = padding_of(step, x.shape[1:])
    if any(extra):
        x = F.pad(x, (0, extra[1], 0, extra[0]))
    return F.conv2d(x, weight, bias, step.stride, padding, step.dilation, groups)


def _interleave(x: Tensor, groups: int) -> Tensor:
    """Blocks of channels, one after the other, to one channel of each in turn."""
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
