"""The steps of bytes, slow and plain: what rounds how, and where it saturates. Native kernels equal this to the bit.

Sums are exact integers. What follows them is float32, one operation after the other, each rounded as IEEE 754 has it.
A gate's scores are made 15-bit fractions of the greatest of their head, by which bytes are scaled, and rounded, before
they are summed; of a folded step, weights are. How much the greatest was goes to the sums.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..graph import (
    Activation,
    ByteConv,
    ByteMean,
    BytePool,
    Bytes,
    ByteStep,
    ByteTable,
    Dequantize,
    GateSpec,
    Quantize,
    Rescale,
)

FULL_GATE = 32767  # what the greatest score becomes, of 2^15
HALF = 1 << 14
Select = Callable[[GateSpec, Tensor], tuple[Tensor, Tensor]]  # saliencies [B, H, C] of means [B, C], and what is kept


def run_step(step: ByteStep, values: dict[str, Any], select: Select) -> Tensor:
    """The value that a step writes, from those that it reads; bytes are uint8 [B, C, height, width]."""
    x = values[step.input]
    match step:
        case Quantize():
            return to_bytes(x * float32(1 / step.bytes.scale), step.bytes, "identity")
        case Dequantize():
            return (x.int() - step.bytes.zero).float() * float32(step.bytes.scale)
        case ByteMean():
            pixels = x.shape[2] * x.shape[3]
            sums = x.long().sum((2, 3)) - pixels * step.bytes.zero
            return sums.float() * (float32(step.bytes.scale) / float32(pixels))
        case BytePool():
            return _pool(step, x)
        case ByteTable():
            return torch.tensor(step.table, dtype=torch.uint8, device="cpu")[x.long()]
        case Rescale():
            x = x if step.order is None else x[:, step.order]
            v = x.float() * _by_channel(step.scale) + _by_channel(step.shift)
            if step.other is not None:
                v = v + values[step.other].float() * float32(step.other_scale)
            return to_bytes(v, step.result, step.activation)
        case ByteConv():
            return conv(step, x, None if step.residual is None else values[step.residual], select)


def float32(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float32, device="cpu")


def clamp(result: Bytes, activation: Activation) -> tuple[float, float]:
    """Between what numbers, in steps of the scale, a result is a byte once its zero is added."""
    low, high = -result.zero if activation == "identity" else 0, 255 - result.zero
    return float(low), min(float(high), float(float32(6 / result.scale))) if activation == "relu6" else float(high)


def to_bytes(v: Tensor, result: Bytes, activation: Activation) -> Tensor:
    """Rounded to the nearest, ties to even; NaN becomes the least."""
    low, high = clamp(result, activation)
    v = torch.where(v > low, v, float32(low))
    v = torch.where(v < high, v, float32(high))
    return (v.round() + result.zero).to(torch.uint8)


def _by_channel(numbers: Tensor) -> Tensor:
    return numbers[:, None, None]


def _pool(step: BytePool, x: Tensor) -> Tensor:
    if step.kind == "max":
        return F.max_pool2d(x.float(), step.kernel, step.stride, step.padding).to(torch.uint8)
    rows, columns = step.padding
    padded = F.pad(x.double(), (columns, columns, rows, rows), value=step.zero)
    taps = step.kernel[0] * step.kernel[1]
    sums = F.avg_pool2d(padded, step.kernel, step.stride, divisor_override=1).float()
    return to_bytes(sums * (float32(1) / float32(taps)), Bytes(1.0, 0), "identity")


def conv(step: ByteConv, x: Tensor, residual: Tensor | None, select: Select) -> Tensor:
    """All images; the sum and its unit of each output, then the rest."""
    centred = x.double() - step.given.zero  # of integers, doubles are exact
    weight = step.weight.double()
    if step.gate is not None:
        gated_sums = _folded_sums if step.folded else _gated_sums
        sums, units = gated_sums(step, centred, weight, *select(step.gate, means(step, x)))
    else:
        sums, units = _sums(step, centred, weight), torch.ones(len(x), len(weight))
    v = sums.float() * (step.multiplier * units)[:, :, None, None] + _by_channel(step.bias)
    if residual is not None:
        v = v + residual.float() * float32(step.residual_scale)
    return to_bytes(v, step.result, step.activation)


def means(step: ByteConv, x: Tensor) -> Tensor:
    """What the generator of a gate is given: the mean of each channel."""
    pixels = x.shape[2] * x.shape[3]
    sums = x.long().sum((2, 3)) - pixels * step.given.zero
    return sums.float() * (float32(step.given.scale) / float32(pixels))


def fractions(saliency: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Of the scores of a head, [B, H, C]: signed integers, 0 for what is left out, and the unit of each head [B, H]."""
    scores = saliency.where(kept, 0.0)
    greatest = scores.abs().nan_to_num(0.0, torch.inf).amax(-1, keepdim=True)
    greatest = greatest.where(greatest <= 3e38, 0.0)
    ratio = torch.where(greatest > 0, float32(FULL_GATE) / greatest, float32(0))
    sizes = (scores.abs() * ratio).nan_to_num(0.0, FULL_GATE).clamp(0, FULL_GATE).round()
    return sizes.copysign(scores).long(), (greatest * float32(32768 / 32767)).squeeze(-1)


def _gated_sums(step: ByteConv, x: Tensor, weight: Tensor, saliency: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    heads = saliency.shape[1]
    factors, units = fractions(saliency, kept)
    sums = []
    for head in range(heads):
        factor = factors[:, head, :, None, None]
        sizes = torch.div(x.long() * factor.abs() + HALF, 2 * HALF, rounding_mode="floor")
        gated = sizes * factor.sign()  # what is left out, and what a score of zero scales, is zero
        sums.append(_convolve(step, gated.double(), weight[head::heads], 1))
    return torch.stack(sums, 2).flatten(1, 2), units.repeat(1, len(weight) // heads)


def _folded_sums(step: ByteConv, x: Tensor, weight: Tensor, saliency: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    factors, units = fractions(saliency, kept)
    turns = len(weight) // saliency.shape[1]
    sums = []
    for image, factor in zip(x, factors.repeat(1, turns, 1)[..., None, None], strict=True):
        folded = torch.div(weight.long() * factor + HALF, 2 * HALF, rounding_mode="floor")
        sums.append(_convolve(step, image[None], folded.double(), 1))
    return torch.cat(sums), units.repeat(1, turns)


def _sums(step: ByteConv, x: Tensor, weight: Tensor) -> Tensor:
    if not step.interleaved:
        return _convolve(step, x, weight, step.groups)
    by_group = torch.arange(len(weight)).view(-1, step.groups).T.flatten()
    sums = _convolve(step, x, weight[by_group], step.groups)
    return sums.unflatten(1, (step.groups, -1)).transpose(1, 2).flatten(1, 2)


def _convolve(step: ByteConv, x: Tensor, weight: Tensor, groups: int) -> Tensor:
    if any(step.extra_padding):
        x = F.pad(x, (0, step.extra_padding[1], 0, step.extra_padding[0]))
    return F.conv2d(x, weight, None, step.stride, step.padding, step.dilation, groups).round()
