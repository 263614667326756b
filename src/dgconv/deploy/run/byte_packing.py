"""Steps of bytes as the native program wants them, in the order in which their channels lie."""

from ctypes import byref
from dataclasses import replace

import torch
from torch import Tensor

from ...errors import UserError
from ...ops import structs
from ...ops.native import library
from ..graph import ByteConv, ByteMean, BytePool, Bytes, ByteStep, ByteTable, Dequantize, GateSpec, Quantize, Rescale
from .channel_order import Order, heads_of, is_depthwise, positions
from .integer_steps import clamp
from .packed import NativeStep, sound_size

VECTOR = 16  # numbers by channel that may be read behind the last


def pack_bytes(packed: NativeStep, step: ByteStep, orders: dict[str, Order]) -> None:
    """Fills in the native form of a step."""
    native, given = packed.native, orders.get(step.input)
    match step:
        case Quantize():
            native.kind = structs.QUANTIZE
            order = positions(orders[step.output])
            to_byte = _to_byte(step.bytes)
            native.bytes = structs.ByteConv(input_scale=1 / step.bytes.scale, result=to_byte)
            native.bytes.positions = packed.integers(order)
        case Dequantize() | ByteMean():
            native.kind = structs.DEQUANTIZE if isinstance(step, Dequantize) else structs.BYTE_MEAN
            native.bytes = structs.ByteConv(input_scale=step.bytes.scale, input_zero=step.bytes.zero)
            order = given if isinstance(step, ByteMean) else positions(given)
            native.bytes.positions = packed.integers(order)
        case BytePool():
            native.kind = structs.BYTE_POOL
            native.window = structs.Window(step.kind == "max", *step.kernel, *step.stride, *step.padding)
            native.bytes = structs.ByteConv(input_zero=step.zero)
        case ByteTable():
            native.kind = structs.BYTE_TABLE
            table = packed.bytes(len(step.table)).copy_(torch.tensor(step.table, dtype=torch.uint8, device="cpu"))
            native.bytes = structs.ByteConv(weight=table.data_ptr())
        case Rescale():
            native.kind = structs.RESCALE
            _pack_rescale(packed, step, given, orders[step.output])
        case ByteConv():
            native.kind = structs.BYTE_CONV
            _pack_conv(packed, step, given, orders[step.output])


def _refuse_misfit(step: ByteStep, given: Order, channels: int) -> None:
    """What reads bytes must have as many channels as what wrote them. Others are refused by their shapes, but only
    when there is an image."""
    if given is not None and len(given) != channels:
        raise UserError(f"{step.input!r} has {len(given)} channels, and {step.output!r} reads {channels}")


def _to_byte(result: Bytes, activation: str = "identity") -> structs.ToByte:
    return structs.ToByte(*clamp(result, activation), result.zero)  # type: ignore[arg-type]


def _padded(numbers: Tensor, order: Order) -> Tensor:
    numbers = numbers if order is None else numbers[order.long()]
    return torch.cat([numbers, numbers.new_zeros(VECTOR)])


def _pack_rescale(packed: NativeStep, step: Rescale, given: Order, order: Order) -> None:
    _refuse_misfit(step, given, len(step.scale))
    _refuse_misfit(step, order, len(step.scale))
    channels = torch.arange(len(step.scale), dtype=torch.int64, device="cpu")
    reads = channels if step.order is None else torch.tensor(step.order, dtype=torch.int64, device="cpu")
    places = channels if given is None else positions(given).long()  # type: ignore[union-attr]
    written = channels if order is None else order.long()
    source = places[reads][written]
    native = packed.native
    native.bytes = structs.ByteConv(
        multiplier=packed.address(_padded(step.scale, order)),
        bias=packed.address(_padded(step.shift, order)),
        residual_scale=step.other_scale,
        result=_to_byte(step.result, step.activation),
    )
    if not torch.equal(source, channels):
        native.bytes.positions = packed.integers(source.int())


def _pack_conv(packed: NativeStep, step: ByteConv, given: Order, order: Order) -> None:
    outputs, inputs = len(step.weight), step.weight.shape[1] * step.groups
    _refuse_misfit(step, given, inputs)
    _refuse_misfit(step, order, outputs)
    depthwise = is_depthwise(step)
    groups = step.groups if heads_of(step) == 1 else heads_of(step)
    weight = step.weight if order is None else step.weight[order.long()]
    conv = structs.ByteConv(
        *(inputs, outputs, *step.weight.shape[2:], *step.stride, *step.padding, *step.dilation),
        groups=groups,
        is_depthwise=depthwise,
        joined=1,
        multiplier=packed.address(_padded(step.multiplier, order)),
        bias=packed.address(_padded(step.bias, order)),
        residual_scale=step.residual_scale,
        input_zero=step.given.zero,
        result=_to_byte(step.result, step.activation),
        input_scale=step.given.scale,
    )
    if step.groups > 1 and not depthwise:
        conv.positions = packed.integers(positions(given))
        conv.joined = library().dgconv_joined_groups(byref(conv))
        if conv.joined == 1:
            conv.positions = None
            widened = _widened_groups(groups, outputs)
            weight, groups = _widened(weight, groups, widened), groups // widened
            conv.groups = groups
    choices = None if depthwise or conv.joined > 1 else _choices(step, given, groups)
    if step.groups > 1 and choices is not None:
        weight = _widened(weight, groups, groups)
    if given is not None and not depthwise and weight.shape[1] == inputs:
        weight = weight[:, given.long()]
    if step.gate is not None:
        conv.chooses = structs.FOLDED if step.folded else structs.GATED
        conv.most_chosen = inputs if step.gate.keep is None else step.gate.keep
        conv.positions = packed.integers(positions(given))
        packed.pack_gate(_in_places(step.gate, positions(given)))
        conv.generator = packed.native.bytes.generator
    elif choices is not None:
        conv.chooses, conv.most_chosen = structs.FIXED, max(map(len, choices))
    else:
        start = -step.given.zero * weight.sum((1, 2, 3), dtype=torch.int32)
        conv.start = packed.integers(_padded(start, None))
    weight = weight.contiguous()
    size = sound_size(library().dgconv_byte_packed_bytes(byref(conv)), step.output)
    conv.weight = packed.bytes(size).data_ptr()
    library().dgconv_pack_bytes(byref(conv), weight.data_ptr(), conv.weight)
    if conv.chooses == structs.FIXED and choices is not None:
        size = library().dgconv_choices_bytes(byref(conv)) + library().dgconv_chosen_bytes(byref(conv))
        conv.choices = packed.bytes(sound_size(size, step.output)).zero_().data_ptr()
        for group, channels in enumerate(choices):
            read = torch.tensor(channels, dtype=torch.int32, device="cpu")
            library().dgconv_choose_bytes(byref(conv), group, read.data_ptr(), len(read), conv.choices)
    packed.native.bytes = conv


def _in_places(gate: GateSpec, places: Order) -> GateSpec:
    """A fixed choice in the order in which it lies in a pixel: kernels need not sort it for every image."""
    if gate.fixed is None or places is None:
        return gate
    channels = torch.tensor(gate.fixed, dtype=torch.int64, device="cpu")
    order = places.long()[channels].argsort(1)
    weight2 = gate.weight2.gather(1, order[..., None].expand_as(gate.weight2))
    return replace(gate, weight2=weight2, bias=gate.bias.gather(1, order), fixed=channels.gather(1, order).tolist())


def _widened_groups(groups: int, outputs: int) -> int:
    """How many narrow groups are computed as one where lanes can't read apart: each alone would take as long as all."""
    fitting = (count for count in range(1, groups + 1) if groups % count == 0 and count * outputs // groups <= VECTOR)
    return max(fitting, default=1)


def _choices(step: ByteConv, given: Order, groups: int) -> list[list[int]] | None:
    """Where in a pixel each group finds what it reads; None: in one block, or where its gate says."""
    if step.gate is not None or (step.picks is None and (groups == 1 or given is None)):
        return None
    per_group = step.weight.shape[1] * step.groups // groups
    read = step.picks or [[*range(g * per_group, (g + 1) * per_group)] for g in range(groups)]
    if given is None:
        return read
    places = positions(given)
    assert places is not None
    return [sorted(places[channels].tolist()) for channels in read]


def _widened(weight: Tensor, groups: int, joined: int) -> Tensor:
    """The weights of groups that lie one behind the other, so many of which read what each of them does; weights for
    the inputs of others are zero."""
    inputs = weight.shape[1]
    wide = weight.new_zeros(len(weight), inputs * joined, *weight.shape[2:])
    for group, (part, whole) in enumerate(zip(weight.chunk(groups), wide.chunk(groups), strict=True)):
        first = group % joined * inputs
        whole[:, first : first + inputs] = part
    return wide
