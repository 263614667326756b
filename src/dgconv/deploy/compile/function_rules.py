"""How each function and method that a model calls becomes a step. One without a rule is left to torch."""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..calls import Slot, TorchCall
from ..graph import Activation, Concat, Elementwise, Norm, Slice, Torch
from . import operations
from .builder import Builder, NotNative, Value, known, planes, same_grid
from .operations import OTHER_SHAPE, conv_step

Rule = Callable[..., Any]  # rule(builder, ...)
RULES: dict[Callable[..., Any], Rule] = {
    torch.flatten: operations.flatten,
    Tensor.flatten: operations.flatten,
    F.linear: operations.linear,
    F.avg_pool2d: operations.average_pool,
    F.max_pool2d: operations.max_pool,
    F.adaptive_avg_pool2d: operations.adaptive_average_pool,
}


def rule_for(function: Callable[..., Any]) -> Rule | None:
    """Finds a rule by identity; torchvision's by name, for it may not be installed."""
    if getattr(function, "__name__", "") == "stochastic_depth":
        return _stochastic_depth
    return RULES.get(function)


def _rule(*functions: Callable[..., Any]) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, rule))
        return rule

    return register


def _activation(activation: Activation) -> Rule:
    def rule(builder: Builder, x: Value, inplace: bool = False) -> Value:
        return builder.elementwise(known(x), activation=activation)

    return rule


ACTIVATIONS: dict[Activation, tuple[Callable[..., Any], ...]] = {
    "relu": (F.relu, torch.relu, Tensor.relu),
    "relu6": (F.relu6,),
    "silu": (F.silu,),
    "hard_swish": (F.hardswish,),
    "hard_sigmoid": (F.hardsigmoid,),
    "sigmoid": (F.sigmoid, torch.sigmoid, Tensor.sigmoid),
    "tanh": (F.tanh, torch.tanh, Tensor.tanh),
}
for _name, _functions in ACTIVATIONS.items():
    _rule(*_functions)(_activation(_name))


@_rule(operator.mul, torch.mul, Tensor.mul)
def _mul(builder: Builder, x: Any, other: Any) -> Value:
    """By numbers of the channels, constant or computed from the image."""
    if not isinstance(x, Value) or (isinstance(other, Value) and x.rows is not None and other.rows is None):
        x, other = other, x
    if not isinstance(other, Value):
        return _scaled(builder, known(x), other, None)
    if _is_sigmoid_of(builder, other, x):
        return builder.elementwise(known(x), activation="silu")
    channels, others = map(builder.channels, (known(x), other))
    if other.rows is None or x.grid is None or other.grid is None or x.grid.batch != other.grid.batch:
        raise NotNative("neither of the two is known to be a factor for each channel")
    if channels is None or channels != others or x.kind not in ("planes", "pixels") or x.rows is not None:
        raise NotNative("the two may differ in size")
    return builder.elementwise(x, factor=other.rows)


def _is_sigmoid_of(builder: Builder, y: Value, x: Value) -> bool:
    step = builder.producer(y)
    is_sigmoid = isinstance(step, Elementwise) and step.activation == "sigmoid" and step.input == x.name
    return is_sigmoid and step.norm is step.other is step.factor is None  # type: ignore[union-attr]


def _scaled(builder: Builder, x: Value, scale: Any, shift: Any) -> Value:
    """Times one constant, plus another; each a number or one for each channel."""
    channels = builder.channels(x)
    if channels is None:
        raise NotNative("the channels of its input are not known beforehand", replace(x, name="", rows=None))
    scale, shift = (
        _by_channel(x, part, channels) for part in (1.0 if scale is None else scale, 0.0 if shift is None else shift)
    )
    return builder.elementwise(x, Norm(scale, shift))


def _by_channel(x: Value, constant: Any, channels: int) -> Tensor:
    if type(constant) in (int, float):
        return torch.full((channels,), float(constant))
    last = {"planes": (channels, 1, 1), "pixels": (channels,), "rows": (channels,)}[x.kind]
    if not isinstance(constant, Tensor) or constant.dtype != torch.float32:
        raise NotNative("the other is no number")
    shape = tuple(constant.shape)
    if constant.numel() == 1 and len(shape) <= 1:
        return constant.detach().reshape(1).repeat(channels)
    if shape[-len(last) :] != last or any(extent != 1 for extent in shape[: -len(last)]) or len(shape) > 4:
        raise NotNative("the other is no constant for each channel")
    return constant.detach().reshape(channels).clone()


RULES[F.gelu] = operations.gelu
RULES[F.layer_norm] = operations.layer_norm
RULES[F.pad] = operations.pad
RULES[F.interpolate] = operations.interpolate


@_rule(Tensor.permute, torch.permute)
def _permute(builder: Builder, x: Value, *dims: Any) -> Value:
    """Planes whose channels torch would have lie together stay planes here."""
    order = tuple(d % 4 for d in (dims[0] if len(dims) == 1 else dims))
    if known(x).kind == "planes" and order == (0, 2, 3, 1):
        return replace(x, kind="pixels")
    if x.kind == "pixels" and order == (0, 3, 1, 2):
        return replace(x, kind="planes")
    raise NotNative(OTHER_SHAPE)


@_rule(torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes)
def _split(builder: Builder, x: Value, split_size: Any, dim: int = 0) -> Any:
    x, channels = _cut_by_channel(builder, x, dim)
    if isinstance(split_size, int) and split_size > 0:
        sizes = [min(split_size, channels - first) for first in range(0, channels, split_size)]
    else:
        sizes = list(split_size) if isinstance(split_size, tuple | list) else [0]
    if sum(sizes) != channels or min(sizes) < 1:
        raise NotNative("the sizes of its parts are not those of the channels")
    return _parts(builder, x, sizes)


@_rule(torch.chunk, Tensor.chunk)
def _chunk(builder: Builder, x: Value, chunks: int, dim: int = 0) -> Any:
    channels = _cut_by_channel(builder, x, dim)[1]
    return _split(builder, x, -(-channels // chunks), dim)


def _cut_by_channel(builder: Builder, x: Value, dim: Any) -> tuple[Value, int]:
    x = planes(x)
    channels = builder.channels(x)
    if dim not in (1, -3) or channels is None or x.rows is not None:
        raise NotNative("it does not cut planes of known channels along these")
    return x, channels


def _parts(builder: Builder, x: Value, sizes: list[int]) -> tuple[Value, ...]:
    """Some channels after the other. In torch they share the memory of x."""
    found, first = [], 0
    for size in sizes:
        name = builder.add(Slice(x.name, "", first, size))
        builder.views.append((name, x.name))
        found.append(Value(name, "planes", size, x.grid))
        first += size
    return tuple(found)


@_rule(operator.add, torch.add, Tensor.add)
def _add(builder: Builder, x: Any, other: Any, *, alpha: float = 1) -> Value:
    if alpha == 1 and isinstance(x, Value) != isinstance(other, Value):
        return (
            _scaled(builder, known(x), None, other) if isinstance(x, Value) else _scaled(builder, known(other), None, x)
        )
    both = [known(x), known(other)]
    if alpha != 1:
        raise NotNative("it adds a multiple")
    channels, others = map(builder.channels, both)
    if not same_grid(both) or channels is None or channels != others:
        raise NotNative("the two may differ in size")
    return builder.elementwise(x, other=other)


@_rule(torch.cat, torch.concat, torch.concatenate)
def _concat(builder: Builder, tensors: Any, dim: int = 0) -> Value:
    parts = [known(part) for part in tensors]
    if dim not in (1, -3) or not same_grid(parts):
        raise NotNative("it does not join planes along the channels")
    counts = [part.channels for part in parts]
    channels = None if None in counts else sum(count for count in counts if count is not None)
    return Value(builder.add(Concat([part.name for part in parts], "")), "planes", channels, parts[0].grid)


@_rule(torch.mean, Tensor.mean)
def _mean(builder: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    dimensions = {d % 4 for d in dim} if isinstance(dim, tuple | list) else dim
    if known(x).kind != "planes" or dimensions != {2, 3} or x.rows is not None:
        raise NotNative("a mean of other dimensions than height and width")
    return builder.global_pool(x, as_planes=keepdim)


@_rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
def _dropout(builder: Builder, x: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    if training:
        raise NotNative("it drops values in eval mode too")
    return x


def _stochastic_depth(builder: Builder, x: Value, p: float, mode: str, training: bool = True) -> Value:
    return _dropout(builder, x, p, training)


@_rule(Tensor.contiguous, Tensor.detach, Tensor.float)
def _same(builder: Builder, x: Value) -> Value:
    return known(x)


@_rule(F.conv2d, torch.conv2d)
def _conv2d(
    builder: Builder,
    x: Value,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    x = planes(x)
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor | None):
        raise NotNative("its weight depends on the image")
    return builder.window(x, conv_step(x, weight, bias, stride, padding, dilation, groups))


@_rule(F.batch_norm)
def _batch_norm(
    builder: Builder,
    x: Value,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    if training or not isinstance(running_mean, Tensor) or not isinstance(running_var, Tensor):
        raise NotNative("it uses the statistics of each batch")
    if not isinstance(weight, Tensor | None) or not isinstance(bias, Tensor | None):
        raise NotNative("its weight depends on the image")
    norm: Norm = operations.norm_of(running_mean, running_var, weight, bias, eps)
    return builder.elementwise(known(x), norm)


@_rule(operator.getitem)
def _item(builder: Builder, x: Any, index: Any) -> Any:
    if isinstance(x, tuple | list) and isinstance(index, int):  # a layer that returned several values
        return x[index]
    if isinstance(x, Value) and x.kind == "shape":
        if index in (slice(2, None), slice(-2, None), slice(2, 4)) and x.of is not None:
            raise NotNative(OTHER_SHAPE, replace(x, kind="size"))
        return _one_size(x, index)
    every = slice(None)
    if index == (every, every, None, None) and isinstance(x, Value) and x.kind == "rows":
        return builder.one_pixel(x)
    is_of_channels = isinstance(index, tuple) and len(index) in (2, 3, 4)
    is_of_channels = is_of_channels and all(part == every for part in (index[0], *index[2:]))
    if isinstance(x, Value) and x.kind == "planes" and is_of_channels:
        return _some_channels(builder, x, index[1])
    raise NotNative(OTHER_SHAPE)


def _some_channels(builder: Builder, x: Value, part: Any) -> Value:
    """``x[:, first:end]``."""
    x, channels = _cut_by_channel(builder, x, 1)
    if not isinstance(part, slice) or part.step not in (None, 1):
        raise NotNative(OTHER_SHAPE)
    if not all(isinstance(end, int | None) for end in (part.start, part.stop)):
        raise NotNative("how many channels it takes is not known beforehand")
    first, end, _ = part.indices(channels)
    if end <= first:
        raise NotNative("it takes no channels")
    name = builder.add(Slice(x.name, "", first, end - first))
    builder.views.append((name, x.name))
    return Value(name, "planes", end - first, x.grid)


@_rule(Tensor.size)
def _size(builder: Builder, x: Value, dim: int | None = None) -> Any:
    if dim is None:
        of = x.name if known(x).kind == "planes" else None
        raise NotNative(OTHER_SHAPE, replace(x, kind="shape", of=of))
    return _one_size(known(x), dim)


def _one_size(x: Value, dim: Any) -> int:
    """How many channels there are may be known, how many images only torch can say."""
    if dim == 1 and x.channels is not None:
        return x.channels
    raise NotNative(OTHER_SHAPE, replace(x, kind="batch size") if dim == 0 else None)


@_rule(Tensor.unsqueeze, torch.unsqueeze)
def _unsqueeze(builder: Builder, x: Value, dim: int) -> Value:
    """Twice at the end of rows, it makes planes of one pixel."""
    if isinstance(x, Value) and x.kind == "rows" and dim in (2, -1):
        raise NotNative(OTHER_SHAPE, Value("", "other", x.channels, x.grid, of=x.name))
    if isinstance(x, Value) and x.kind == "other" and x.of is not None and dim in (3, -1):
        return builder.one_pixel(Value(x.of, "rows", x.channels, x.grid))
    raise NotNative(OTHER_SHAPE)


@_rule(Tensor.expand_as)
def _expand_as(builder: Builder, x: Value, other: Value) -> Value:
    """Whoever multiplies by it takes the rows."""
    if isinstance(x, Value) and x.is_one_pixel and known(other).kind == "planes" and x.channels == other.channels:
        call = TorchCall(Tensor.expand_as, (Slot(0), Slot(1)), {})
        return replace(other, name=builder.add(Torch([x.name, other.name], "", call, OTHER_SHAPE)), rows=x.rows)
    raise NotNative(OTHER_SHAPE, known(other))


@_rule(getattr)
def _attribute(builder: Builder, x: Value, name: str) -> Any:
    if name == "ndim":
        return _dimensions(builder, x)
    raise NotNative(f"the attribute {name!r}")


@_rule(Tensor.dim)
def _dimensions(builder: Builder, x: Value) -> int:
    return {"planes": 4, "pixels": 4, "rows": 2}[known(x).kind]


@_rule(Tensor.view, Tensor.reshape, torch.reshape)
def _view(builder: Builder, x: Value, *shape: Any) -> Value:
    """``x.view(x.size(0), -1)`` is a flatten, and so is ``x.view(batch, channels)`` of one pixel."""
    sizes = list(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)
    if sizes and _is_batch_of(sizes[0], x):
        is_all = x.kind == "rows" and sizes[1:2] in ([-1], [x.channels])
        if len(sizes) == 2 and (sizes[1] == -1 or x.rows is not None or is_all):
            return operations.flatten(builder, x, 1)
        if sizes[2:] == [1, 1] and is_all:
            return builder.one_pixel(x)
    raise NotNative(OTHER_SHAPE, Value("", "rows") if len(sizes) == 2 else None)


def _is_batch_of(size: Any, x: Value) -> bool:
    """Whether it is the number of images of x, taken from x or from what x was computed from."""
    is_size = isinstance(size, Value) and size.kind == "batch size" and size.grid is not None
    return is_size and x.grid is not None and size.grid.batch == x.grid.batch
