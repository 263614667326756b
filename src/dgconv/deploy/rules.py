"""What a step may be: the ranges of its numbers, what may stand together in it, and how large its tensors are.

A step that breaks a rule is never given to the native kernels, which look at nothing: :func:`prepare` leaves it to
torch, and in a file it is refused.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import graph as kinds
from .graph import BOUNDS, Step

MOST_CHANNELS = 1 << 20  # of a value, and of anything else that is counted
MOST_WEIGHTS = 1 << 27  # numbers in one tensor
MOST_BYTE_CHANNELS = 1 << 14  # of a value of bytes
MOST_TERMS = 1 << 16  # of a sum of bytes: 32 bits hold it
SCALES = (1e-30, 1e30)  # of bytes
MOST_AVERAGED = (2**31 - 1) // 255  # bytes of a window
MOST_REACH = 1 << 16  # pixels from one end of a window to the other


class Range(NamedTuple):
    """A range of whole numbers, both ends included."""

    least: int
    most: int


WINDOW = {
    "stride": Range(1, 1 << 10),
    "padding": Range(0, 1 << 12),
    "extra_padding": Range(0, 1 << 12),
    "dilation": Range(1, 1 << 12),
    "groups": Range(1, MOST_CHANNELS),
}
POOLING = {"kernel": Range(1, 1 << 12), "stride": Range(1, 1 << 12), "padding": Range(0, 1 << 12)}
BYTE = Range(0, 255)
RANGES: dict[type, dict[str, Range]] = {  # by record and field; of a pair, each number
    kinds.Conv: WINDOW,
    kinds.ByteConv: WINDOW,
    kinds.Bytes: {"zero": BYTE},
    kinds.BytePool: POOLING | {"zero": BYTE},
    kinds.GateSpec: {"keep": Range(1, MOST_CHANNELS)},
    kinds.BoostSpec: {"keep": Range(1, MOST_CHANNELS)},
    kinds.Pool: POOLING,
    kinds.Resize: {"size": Range(1, 1 << 14)},
    kinds.Pad: {"padding": Range(0, 1 << 12), "end_padding": Range(0, 1 << 12)},
    kinds.Slice: {"first": Range(0, MOST_CHANNELS), "count": Range(1, MOST_CHANNELS)},
}
TOGETHER: dict[type, tuple[set[str], ...]] = {  # what may stand in one step: any part of one of these
    kinds.Conv: (
        {"groups", "interleaved", "before", "residual"},
        {"gate", "before", "residual"},
        {"picks", "before", "residual"},
        {"boost", "before", "residual"},
        {"groups", "expansion"},
    ),
    kinds.ByteConv: ({"groups", "interleaved", "residual"}, {"gate", "folded", "residual"}, {"picks", "residual"}),
}
LARGEST_SCALE = 64.0  # of planes that are resized
LARGEST_THRESHOLD = 1e30  # float32 ends soon after


def problem(step: Step) -> str | None:
    """The first rule that a step breaks, in words that follow its name; None where it breaks none."""
    return next(_problems(step), None)


def _problems(record: Any) -> Iterator[str]:
    """What is wrong with a step, or a part of one."""
    kind = type(record)
    yield from _numbers(record)
    if kind in TOGETHER:
        present = _features(record)
        if not any(present <= allowed for allowed in TOGETHER[kind]):
            yield f"its {' and '.join(sorted(present))} cannot stand together"
    for field in fields(record):
        part = getattr(record, field.name)
        if isinstance(part, Tensor):
            yield from _tensor(field.name, part, torch.int8 if field.name in _of_bytes(record) else torch.float32)
        elif is_dataclass(part) and type(part) in CHECKS:
            yield from (f"{field.name}: {words}" for words in _problems(part))
    yield from CHECKS[kind](record)


def _of_bytes(record: Any) -> tuple[str, ...]:
    """The fields whose tensors are bytes."""
    if isinstance(record, kinds.GateSpec) and record.scale is not None:
        return ("weight1", "weight2")
    if isinstance(record, kinds.Linear) and record.scale is not None:
        return ("weight",)
    return ("weight",) if isinstance(record, kinds.ByteConv) else ()


def _numbers(record: Any) -> Iterator[str]:
    for name, (least, most) in RANGES.get(type(record), {}).items():
        value = getattr(record, name)
        for number in value if isinstance(value, tuple) else () if value is None else (value,):
            if type(number) is not int or not least <= number <= most:
                yield f"`{name}` must be from {least} to {most}, got {value}"


def _features(step: Any) -> set[str]:
    """The fields that set a step apart from the plainest one."""
    return {
        name
        for name in set().union(*TOGETHER[type(step)])
        if getattr(step, name) not in (None, False) and (name != "groups" or step.groups > 1)
    }


def _tensor(name: str, tensor: Tensor, dtype: torch.dtype) -> Iterator[str]:
    if tensor.dtype != dtype or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        yield f"`{name}` must be a {dtype} tensor on the CPU, got {tensor.dtype} on {tensor.device}"
    if not 0 < tensor.numel() <= MOST_WEIGHTS:
        yield f"`{name}` must have up to {MOST_WEIGHTS:,} numbers, got the shape {list(tensor.shape)}"


def _shape(name: str, tensor: Tensor | None, *shape: int) -> Iterator[str]:
    if tensor is not None and tensor.shape != shape:
        yield f"`{name}` must have the shape {list(shape)}, got {list(tensor.shape)}"


def _norm(norm: kinds.Norm) -> Iterator[str]:
    yield from _shape("scale", norm.scale, norm.scale.numel())
    yield from _shape("shift", norm.shift, norm.scale.numel())


def _gate(gate: kinds.GateSpec) -> Iterator[str]:
    if gate.weight1.dim() != 3:
        yield f"`weight1` must have three dimensions, got the shape {list(gate.weight1.shape)}"
        return
    heads, hidden, channels = gate.weight1.shape
    scored = channels if gate.fixed is None or gate.keep is None else gate.keep
    yield from _shape("weight2", gate.weight2, heads, scored, hidden)
    yield from _shape("bias", gate.bias, heads, scored)
    yield from _shape("scale", gate.scale, heads, hidden)
    if gate.fixed is not None:
        yield from _picks(gate.fixed, channels, "fixed")
        if [len(chosen) for chosen in gate.fixed] != [gate.keep] * heads:
            yield f"`fixed` must be `keep` channels for each of {heads} heads"
    if (gate.keep is None) == (gate.threshold is None):
        yield "a gate has either `keep` or `threshold`"
    if gate.keep is not None and gate.keep > channels:
        yield f"`keep` must be up to its {channels} channels, got {gate.keep}"
    if gate.threshold is not None and not abs(gate.threshold) <= LARGEST_THRESHOLD:  # nor NaN
        yield f"`threshold` must be a number up to {LARGEST_THRESHOLD:g}, got {gate.threshold}"


def _boost(boost: kinds.BoostSpec) -> Iterator[str]:
    if boost.weight.dim() != 2:
        yield f"`weight` must have two dimensions, got the shape {list(boost.weight.shape)}"
        return
    outputs = len(boost.weight)
    yield from _shape("bias", boost.bias, outputs)
    yield from _shape("shift", boost.shift, outputs)
    if boost.keep > outputs:
        yield f"`keep` must be up to its {outputs} outputs, got {boost.keep}"


def _conv(step: kinds.Conv | kinds.ByteConv) -> Iterator[str]:
    if step.weight.dim() != 4:
        yield f"`weight` must have four dimensions, got the shape {list(step.weight.shape)}"
        return
    outputs, inputs, *kernel = step.weight.shape
    inputs *= step.groups
    if max(inputs, outputs) > MOST_CHANNELS:
        yield f"it has {inputs} inputs and {outputs} outputs; there may be {MOST_CHANNELS}"
    if any(spread * (size - 1) >= MOST_REACH for spread, size in zip(step.dilation, kernel, strict=True)):
        yield f"its windows reach over more than {MOST_REACH} pixels"
    yield from _shape("bias", step.bias, outputs)
    cuts = step.groups
    if step.gate is not None:
        cuts = len(step.gate.weight1)
        yield from _shape("gate.weight1", step.gate.weight1, cuts, step.gate.weight1.shape[1], inputs)
    if step.picks is not None:
        cuts = len(step.picks)
        yield from _picks(step.picks, inputs)
    if cuts < 1 or outputs % cuts:
        yield f"its {outputs} outputs cannot be shared by {cuts} groups"


def _float_conv(step: kinds.Conv) -> Iterator[str]:
    if step.weight.dim() != 4:
        yield from _conv(step)
        return
    yield from _conv(step)
    if step.same and any((*step.padding, *step.extra_padding)):
        yield "its padding is `same`, and a number too"
    outputs, inputs = len(step.weight), step.weight.shape[1] * step.groups
    if step.before is not None:
        yield from _shape("before.scale", step.before.scale, inputs)
    if step.boost is not None:
        yield from _shape("boost.weight", step.boost.weight, outputs, inputs)
        if step.activation not in BOUNDS:
            yield f"winning outputs cannot have the activation {step.activation}"
    if step.gate is not None and step.gate.scale is not None:
        yield "a gate whose weights are bytes belongs to a convolution of bytes"
    if step.expansion is not None:
        yield from _expansion(step.expansion, step)


def _byte_conv(step: kinds.ByteConv) -> Iterator[str]:
    yield from _conv(step)
    if step.weight.dim() != 4:
        return
    outputs, terms = len(step.weight), step.weight[0].numel()
    yield from _shape("multiplier", step.multiplier, outputs)
    yield from _few_channels(max(outputs, step.weight.shape[1] * step.groups))
    if terms > MOST_TERMS:
        yield f"its sums have {terms} terms; there may be {MOST_TERMS}"
    if step.weight.min() < -127:
        yield "`weight` must be from -127 to 127"
    if step.folded and step.gate is None:
        yield "it is `folded`, and has no gate"
    yield from _number("residual_scale", step.residual_scale)


def _bytes(bytes: kinds.Bytes) -> Iterator[str]:
    if not SCALES[0] <= bytes.scale <= SCALES[1]:  # nor NaN
        yield f"`scale` must be from {SCALES[0]} to {SCALES[1]}, got {bytes.scale}"


def _rescale(step: kinds.Rescale) -> Iterator[str]:
    yield from _shape("scale", step.scale, step.scale.numel())
    yield from _shape("shift", step.shift, step.scale.numel())
    yield from _few_channels(step.scale.numel())
    yield from _number("other_scale", step.other_scale)
    yield from _order(step.order)
    if step.order is not None:
        yield from _shape("scale", step.scale, len(step.order))


def _table(step: kinds.ByteTable) -> Iterator[str]:
    if len(step.table) != 256 or not all(type(byte) is int and 0 <= byte <= 255 for byte in step.table):
        yield "`table` must be 256 numbers from 0 to 255"


def _few_channels(channels: int) -> Iterator[str]:
    if channels > MOST_BYTE_CHANNELS:
        yield f"it has {channels} channels of bytes; there may be {MOST_BYTE_CHANNELS}"


def _number(name: str, number: float) -> Iterator[str]:
    if not abs(number) <= SCALES[1]:  # nor NaN
        yield f"`{name}` must be a number up to {SCALES[1]:g}, got {number}"


def _picks(picks: list[list[int]], inputs: int, name: str = "picks") -> Iterator[str]:
    for picked in picks:
        ends = (-1, *picked), (*picked, inputs)
        if not all(type(channel) is int for channel in picked) or not all(a < b for a, b in zip(*ends, strict=True)):
            yield f"`{name}` must be ascending numbers of its {inputs} inputs"
            return


def _expansion(first: kinds.Conv, then: kinds.Conv) -> Iterator[str]:
    """The two that may be joined: a plain convolution, and a depthwise one that reads it."""
    if _features(first):
        yield f"an expansion is a plain convolution; it has {' and '.join(sorted(_features(first)))}"
    if not len(first.weight) == then.groups == len(then.weight) or then.weight.shape[1] != 1:
        yield "an expansion belongs to a depthwise convolution of all its outputs"
    if first.input != then.input:
        yield f"its expansion reads {first.input!r}, not {then.input!r}"


def _pool(step: kinds.Pool | kinds.BytePool) -> Iterator[str]:
    if any(2 * pad > size for pad, size in zip(step.padding, step.kernel, strict=True)):
        yield f"`padding` must be at most half of `kernel`, got {step.padding} and {step.kernel}"
    if isinstance(step, kinds.BytePool) and step.kernel[0] * step.kernel[1] > MOST_AVERAGED:
        yield f"a window of bytes may have {MOST_AVERAGED} pixels, got {step.kernel}"


def _linear(step: kinds.Linear) -> Iterator[str]:
    if step.weight.dim() != 2:
        yield f"`weight` must have two dimensions, got the shape {list(step.weight.shape)}"
        return
    yield from _shape("bias", step.bias, len(step.weight))
    yield from _shape("scale", step.scale, len(step.weight))


def _elementwise(step: kinds.Elementwise) -> Iterator[str]:
    yield from _order(step.order)
    if step.order is not None and step.norm is not None:
        yield from _shape("norm.scale", step.norm.scale, len(step.order))
    if step.factor is not None and step.norm is not None:
        yield "its norm and factor cannot stand together"


def _layer_norm(step: kinds.LayerNorm) -> Iterator[str]:
    yield from _shape("scale", step.scale, step.scale.numel())
    yield from _shape("shift", step.shift, step.scale.numel())
    if not 0 <= step.epsilon <= 1:  # nor NaN
        yield f"`epsilon` must be from 0 to 1, got {step.epsilon}"


def _resize(step: kinds.Resize) -> Iterator[str]:
    if sum(said is not None for said in (step.size, step.scale, step.like)) != 1:
        yield "one of `size`, `scale` and `like` says how large its result is"
    if not all(1 / LARGEST_SCALE <= scale <= LARGEST_SCALE for scale in step.scale or ()):  # nor NaN
        yield f"`scale` must be from {1 / LARGEST_SCALE} to {LARGEST_SCALE}, got {step.scale}"


def _order(order: list[int] | None) -> Iterator[str]:
    channels = 1 if order is None else len(order)
    if not channels or not all(type(channel) is int and 0 <= channel < channels for channel in order or ()):
        yield f"`order` must name some of its {channels} channels"


def _nothing(step: Any) -> Iterator[str]:
    return iter(())


CHECKS: dict[type, Callable[[Any], Iterator[str]]] = {  # what holds beside ranges and what may stand together
    kinds.Norm: _norm,
    kinds.GateSpec: _gate,
    kinds.BoostSpec: _boost,
    kinds.Conv: _float_conv,
    kinds.Pool: _pool,
    kinds.GlobalPool: _nothing,
    kinds.Linear: _linear,
    kinds.Elementwise: _elementwise,
    kinds.LayerNorm: _layer_norm,
    kinds.Resize: _resize,
    kinds.Pad: _nothing,
    kinds.Slice: _nothing,
    kinds.Concat: _nothing,
    kinds.Bytes: _bytes,
    kinds.Quantize: _nothing,
    kinds.Dequantize: _nothing,
    kinds.ByteConv: _byte_conv,
    kinds.BytePool: _pool,
    kinds.ByteMean: _nothing,
    kinds.Rescale: _rescale,
    kinds.ByteTable: _table,
}
