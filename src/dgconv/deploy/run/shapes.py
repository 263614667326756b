"""The shape of every value of a graph, for one input shape."""

import math

from ...errors import UserError
from ...ops.geometry import Pair, same_padding
from ..graph import (
    ByteConv,
    ByteMean,
    BytePool,
    ByteTable,
    Concat,
    Conv,
    Elementwise,
    GlobalPool,
    Graph,
    LayerNorm,
    Linear,
    Pad,
    Pool,
    Quantize,
    Rescale,
    Resize,
    Slice,
    Step,
    Torch,
    values_read,
)

NEEDS_PLANES = (Conv, Pool, GlobalPool, Resize, Pad, ByteConv, BytePool, ByteMean, ByteTable, Quantize, Rescale)
Shape = tuple[int, ...]  # of one image: planes (channels, height, width), or a row (features,)


def value_shapes(graph: Graph, input_shape: Shape) -> dict[str, Shape]:
    """Shapes by value name, without the batch. Raises a ``UserError`` if the input does not fit the graph."""
    if len(input_shape) not in (1, 3):
        raise UserError(f"expected an input [batch, channels, height, width], got {['batch', *input_shape]}")
    shapes = {graph.input: input_shape}
    for step in graph.steps:
        shapes[step.output] = output_shape(step, shapes)
    return shapes


def as_planes(shape: Shape) -> tuple[int, int, int]:
    """A row is planes of one pixel."""
    channels, height, width = shape if len(shape) == 3 else (*shape, 1, 1)
    return channels, height, width


def input_channels(step: Step) -> int | None:
    """The channels a step needs its input to have; None if any number will do."""
    match step:
        case Conv():
            first = step.expansion or step
            return first.weight.shape[1] * first.groups
        case ByteConv():
            return step.weight.shape[1] * step.groups
        case Rescale() | LayerNorm():
            return len(step.scale)
        case Linear():
            return step.weight.shape[1]
        case Elementwise() if step.order is not None:
            return len(step.order)
    norm = getattr(step, "before", None) or getattr(step, "norm", None)
    return None if norm is None else len(norm.scale)


def padding_of(conv: Conv | ByteConv, shape: Shape) -> tuple[Pair, Pair]:
    """Padding, and more at the bottom and right."""
    if isinstance(conv, Conv) and conv.same:
        kernel = (conv.weight.shape[2], conv.weight.shape[3])
        return same_padding((shape[1], shape[2]), kernel, conv.stride, conv.dilation)
    return conv.padding, conv.extra_padding


def convolved_shape(conv: Conv | ByteConv, shape: Shape) -> Shape:
    """The shape that the convolution itself makes of planes, without the one that may come first."""
    first, extra = padding_of(conv, shape)
    padding = (2 * first[0] + extra[0], 2 * first[1] + extra[1])
    kernel = (conv.weight.shape[2], conv.weight.shape[3])
    return (conv.weight.shape[0], *_window(shape, kernel, conv.stride, padding, conv.dilation))


def output_shape(step: Step, shapes: dict[str, Shape]) -> Shape:
    """The shape that a step makes of those that it reads."""
    if isinstance(step, Torch):
        raise UserError(f"only torch knows the shape of {step.output!r}: {step.reason}")
    if isinstance(step, Concat):
        return _joined(step, [shapes[part] for part in step.inputs])
    shape = _checked_input(step, shapes)
    match step:
        case Conv():
            if step.expansion is not None:
                shape = convolved_shape(step.expansion, shape)
            return _same(convolved_shape(step, shape), step.residual, shapes)
        case ByteConv():
            return _same(convolved_shape(step, shape), step.residual, shapes)
        case Pool() | BytePool():
            padding = (2 * step.padding[0], 2 * step.padding[1])
            return (shape[0], *_window(shape, step.kernel, step.stride, padding))
        case GlobalPool() | ByteMean():
            return shape[:1]
        case Linear():
            return (step.weight.shape[0],)
        case Resize():
            return (shape[0], *_resized(step, shape, shapes))
        case Pad():
            ends = zip(shape[1:], step.padding, step.end_padding, strict=True)
            return (shape[0], *(size + first + last for size, first, last in ends))
        case Slice():
            if step.first + step.count > shape[0]:
                raise UserError(f"{step.input!r} has {shape[0]} channels; {step.first + step.count} are asked for")
            return (step.count, *shape[1:])
        case Elementwise() if step.factor is not None and shapes[step.factor] != shape[:1]:
            raise UserError(f"{step.factor!r} must be [batch, {shape[0]}], got {['batch', *shapes[step.factor]]}")
    return _same(shape, getattr(step, "other", None), shapes)  # Elementwise and the like


def _checked_input(step: Step, shapes: dict[str, Shape]) -> Shape:
    value, channels = values_read(step)[0], input_channels(step)
    shape = shapes[value]
    wants_rows = isinstance(step, Linear)
    wants_planes = isinstance(step, NEEDS_PLANES)
    if (wants_rows and len(shape) != 1) or (wants_planes and len(shape) != 3):
        expected = "[batch, features]" if wants_rows else "[batch, channels, height, width]"
        raise UserError(f"{value!r} must be {expected}, got {['batch', *shape]}")
    if channels is not None and shape[0] != channels:
        raise UserError(f"{value!r} must have {channels} channels, got {shape[0]}")
    return shape


def _window(shape: Shape, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1)) -> Pair:
    """Height and width of the result; ``padding`` is that of both sides together."""
    sizes = []
    for size, kernel_size, step, pad, spread in zip(shape[1:], kernel, stride, padding, dilation, strict=True):
        reach = spread * (kernel_size - 1) + 1
        if size < 1 or size + pad < reach:
            raise UserError(
                f"the image is too small: a window of {reach} pixels meets {size} pixels and {pad} of padding. "
                "Use larger images"
            )
        sizes.append((size + pad - reach) // step + 1)
    return sizes[0], sizes[1]


def _resized(step: Resize, shape: Shape, shapes: dict[str, Shape]) -> Pair:
    if min(shape[1:]) < 1:
        raise UserError(f"{step.input!r} has no pixels that could be resized")
    if step.like is not None:
        height, width = as_planes(shapes[step.like])[1:]
        return height, width
    if step.scale is not None:
        height, width = (math.floor(size * scale) for size, scale in zip(shape[1:], step.scale, strict=True))
        if min(height, width) < 1:
            raise UserError(
                f"the image is too small: nothing is left of {shape[1]} x {shape[2]} pixels. Use larger images"
            )
        return height, width
    assert step.size is not None
    return step.size


def _same(shape: Shape, other: str | None, shapes: dict[str, Shape]) -> Shape:
    if other is not None and shapes[other] != shape:
        raise UserError(f"cannot add {other!r} of shape {shapes[other]} to a value of shape {shape}")
    return shape


def _joined(step: Concat, parts: list[Shape]) -> Shape:
    if any(part[1:] != parts[0][1:] for part in parts):
        raise UserError(f"cannot join {step.inputs}: their sizes differ, {parts}")
    return (sum(part[0] for part in parts), *parts[0][1:])
