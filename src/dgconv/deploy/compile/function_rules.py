"""How each function and method that a model calls becomes a step. One without a rule is left to torch."""

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..graph import Concat, Norm
from .builder import Builder, NotNative, Value, known, planes, same_grid
from .module_rules import (
    OTHER_SHAPE,
    adaptive_average_pool,
    average_pool,
    conv_step,
    flatten,
    linear,
    max_pool,
    norm_of,
)

Rule = Callable[..., Any]  # rule(builder, ...)
RULES: dict[Callable[..., Any], Rule] = {
    torch.flatten: flatten,
    Tensor.flatten: flatten,
    F.linear: linear,
    F.avg_pool2d: average_pool,
    F.max_pool2d: max_pool,
    F.adaptive_avg_pool2d: adaptive_average_pool,
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


@_rule(F.relu, torch.relu, Tensor.relu)
def _relu(builder: Builder, x: Value, inplace: bool = False) -> Value:
    return builder.elementwise(known(x), activation="relu")


@_rule(F.relu6)
def _relu6(builder: Builder, x: Value, inplace: bool = False) -> Value:
    return builder.elementwise(known(x), activation="relu6")


@_rule(operator.add, torch.add, Tensor.add)
def _add(builder: Builder, x: Any, other: Any, *, alpha: float = 1) -> Value:
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
    if known(x).kind != "planes" or dimensions != {2, 3}:
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
    norm: Norm = norm_of(running_mean, running_var, weight, bias, eps)
    return builder.elementwise(known(x), norm)


@_rule(operator.getitem)
def _item(builder: Builder, x: Any, index: Any) -> Any:
    if isinstance(x, tuple | list) and isinstance(index, int):  # a layer that returned several values
        return x[index]
    if isinstance(x, Value) and x.kind == "shape":
        return _one_size(x, index)
    every = slice(None)
    raise NotNative(OTHER_SHAPE, _one_pixel(x) if index == (every, every, None, None) else None)


@_rule(Tensor.size)
def _size(builder: Builder, x: Value, dim: int | None = None) -> Any:
    if dim is None:
        raise NotNative(OTHER_SHAPE, replace(known(x), kind="shape"))
    return _one_size(known(x), dim)


def _one_size(x: Value, dim: Any) -> int:
    """How many channels there are may be known, how many images only torch can say."""
    if dim == 1 and x.channels is not None:
        return x.channels
    raise NotNative(OTHER_SHAPE, replace(x, kind="batch size") if dim == 0 else None)


def _one_pixel(rows: Any) -> Value | None:
    """What [B, C] is as [B, C, 1, 1]."""
    return replace(rows, kind="planes") if isinstance(rows, Value) and rows.kind == "rows" else None


@_rule(Tensor.expand_as)
def _expand_as(builder: Builder, x: Value, other: Value) -> Value:
    raise NotNative(OTHER_SHAPE, known(other))


@_rule(getattr)
def _attribute(builder: Builder, x: Value, name: str) -> Any:
    if name == "ndim":
        return _dimensions(builder, x)
    raise NotNative(f"the attribute {name!r}")


@_rule(Tensor.dim)
def _dimensions(builder: Builder, x: Value) -> int:
    return {"planes": 4, "rows": 2}[known(x).kind]


@_rule(Tensor.view, Tensor.reshape, torch.reshape)
def _view(builder: Builder, x: Value, *shape: Any) -> Value:
    """``x.view(x.size(0), -1)`` is a flatten, and so is ``x.view(batch, channels)`` of one pixel."""
    sizes = list(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)
    if sizes and _is_batch_of(sizes[0], x):
        if len(sizes) == 2 and (sizes[1] == -1 or x.rows is not None):
            return flatten(builder, x, 1)
        if sizes[2:] == [1, 1]:
            raise NotNative(OTHER_SHAPE, _one_pixel(x))
    raise NotNative(OTHER_SHAPE, Value("", "rows") if len(sizes) == 2 else None)


def _is_batch_of(size: Any, x: Value) -> bool:
    """Whether it is the number of images of x, taken from x or from what x was computed from."""
    is_size = isinstance(size, Value) and size.kind == "batch size" and size.grid is not None
    return is_size and x.grid is not None and size.grid.batch == x.grid.batch
