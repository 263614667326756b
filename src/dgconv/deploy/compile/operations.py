"""Steps of what torch has both as a layer and as a function: the rules for either come here."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...layers._conv import resolve_padding
from ...ops.geometry import pair
from ..graph import Conv, LayerNorm, Linear, Norm, Pad, Pool, Resize
from .builder import Builder, Grid, NotNative, Value, after_window, known, planes

OTHER_SHAPE = "the same numbers in another shape"


def conv_step(
    x: Value, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Conv:
    """A static convolution of x, its arguments as torch has them."""
    stride, dilation = pair(stride), pair(dilation)
    padding, extra = resolve_padding(padding, (weight.shape[2], weight.shape[3]), stride, dilation)
    bias = None if bias is None else bias.detach()
    return Conv(x.name, "", weight.detach(), bias, stride, padding, extra, dilation, groups)


def norm_of(mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Norm:
    """A batch norm as one multiplication and one addition, rounded once."""
    scale = torch.rsqrt(variance.detach().double() + eps)
    scale = scale if weight is None else scale * weight.detach().double()
    shift = -mean.detach().double() * scale
    shift = shift if bias is None else shift + bias.detach().double()
    return Norm(scale.float(), shift.float())


def gelu(builder: Builder, x: Value, approximate: str = "none") -> Value:
    return builder.elementwise(known(x), activation="gelu_tanh" if approximate == "tanh" else "gelu")


def layer_norm(
    builder: Builder, x: Value, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Value:
    """Over the channels of pixels, or rows; over whatever else, torch's."""
    if known(x).kind == "planes" or len(normalized_shape) != 1:
        raise NotNative("it normalizes other dimensions than the channels", x)
    if not isinstance(weight, Tensor | None) or not isinstance(bias, Tensor | None):
        raise NotNative("its weight depends on the image", x)
    scale = torch.ones(normalized_shape) if weight is None else weight.detach()
    shift = torch.zeros_like(scale) if bias is None else bias.detach()
    given = x.as_rows() if x.is_one_pixel else x
    out = Value(builder.add(LayerNorm(given.name, "", scale, shift, eps)), given.kind, len(scale), x.grid)
    return builder.one_pixel(out, is_last=True) if x.is_one_pixel else out


def pad(builder: Builder, x: Value, pad: Any, mode: str = "constant", value: float | None = None) -> Value:
    """Zeros around planes."""
    x = planes(x)
    sides = list(pad) if isinstance(pad, tuple | list) else []
    if mode != "constant" or value not in (None, 0) or len(sides) not in (2, 4):
        raise NotNative("it pads with something else than zeros, or in other dimensions")
    left, right, top, bottom = (*sides, 0, 0)[:4]
    if not all(isinstance(side, int) and side >= 0 for side in sides):
        raise NotNative("how much it pads is not known beforehand", Value("", "planes", x.channels))
    if not any(sides):
        return x
    assert x.grid is not None
    grid = x.grid.then(f"less {(-top - bottom, -left - right)}") if any((top + bottom, left + right)) else x.grid
    return Value(builder.add(Pad(x.name, "", (top, left), (bottom, right))), "planes", x.channels, grid)


def interpolate(
    builder: Builder,
    x: Value,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Value:
    x = planes(x)
    unknown = Value("", "planes", x.channels)
    if mode not in ("nearest", "bilinear") or antialias or recompute_scale_factor:
        raise NotNative(f"resampling by mode {mode!r}, antialias or recompute_scale_factor", unknown)
    step = Resize(x.name, "", "nearest" if mode == "nearest" else "bilinear", aligns_corners=bool(align_corners))
    assert x.grid is not None
    if isinstance(size, Value) and size.kind == "size" and size.of is not None:
        step.like, grid = size.of, size.grid
    elif scale_factor is not None and (factors := _numbers(scale_factor, float)):
        step.scale, grid = factors, x.grid.enlarged(factors)
    elif size is not None and (sizes := _numbers(size, int)):
        step.size, grid = sizes, Grid(x.grid.batch, (f"of {sizes}",))
    else:
        raise NotNative("how large its result is depends on the image", unknown)
    return Value(builder.add(step), "planes", x.channels, grid)


def _numbers(value: Any, kind: type) -> Any:
    """A number for each of both directions; None if they are none."""
    numbers = tuple(value) if isinstance(value, tuple | list) else (value, value)
    fitting = len(numbers) == 2 and all(type(number) in (int, float) for number in numbers)
    return tuple(kind(number) for number in numbers) if fitting and numbers == tuple(map(kind, numbers)) else None


def max_pool(
    builder: Builder,
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Value:
    x = planes(x)
    if return_indices:
        raise NotNative("max-pooling that returns indices")
    step = Pool(x.name, "", "max", pair(kernel_size), pair(stride or kernel_size), pair(padding))
    if pair(dilation) != (1, 1) or ceil_mode:
        raise NotNative("max-pooling with dilation or ceil_mode", after_window(x, step))
    return builder.window(x, step)


def average_pool(
    builder: Builder,
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    x = planes(x)
    step = Pool(x.name, "", "average", pair(kernel_size), pair(stride or kernel_size), pair(padding))
    leaves_out_padding = pair(padding) != (0, 0) and not count_include_pad
    if ceil_mode or divisor_override is not None or leaves_out_padding:
        reason = "average pooling with ceil_mode, divisor_override or count_include_pad=False"
        raise NotNative(reason, after_window(x, step))
    return builder.window(x, step)


def adaptive_average_pool(builder: Builder, x: Value, output_size: Any) -> Value:
    x = planes(x)
    if x.is_one_pixel and output_size in (1, (1, 1), [1, 1]):
        return x
    if output_size not in (1, (1, 1), [1, 1]):
        like = Value("", "planes", x.channels, x.grid and x.grid.then(f"pooled to {output_size}"))
        raise NotNative(f"pooling to {output_size}", like)
    return builder.global_pool(x, as_planes=True)


def flatten(builder: Builder, x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Free for what is [B, C] already; else torch's, and the result is known to be rows."""
    last = {"planes": (-1, 3), "pixels": (-1, 3), "rows": (-1, 1)}.get(known(x).kind, ())
    if start_dim != 1 or end_dim not in last:
        raise NotNative("it flattens other dimensions than those after the batch")
    if x.kind == "rows":
        return x
    if x.rows is not None:
        return replace(x, name=x.rows, kind="rows", rows=None)
    raise NotNative(OTHER_SHAPE, Value("", "rows", grid=x.grid and x.grid.of_one_pixel()))


def linear(builder: Builder, x: Value, weight: Any, bias: Any = None) -> Value:
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor | None):
        raise NotNative("its weight depends on the image")
    if isinstance(x, Value) and x.kind == "pixels":
        conv = conv_step(x, weight[:, :, None, None], bias, 1, 0, 1, 1)
        return replace(builder.window(x, conv), kind="pixels")
    if not isinstance(x, Value) or x.kind != "rows":
        raise NotNative("its input is not known to be [batch, features]")
    step = Linear(x.name, "", weight.detach(), None if bias is None else bias.detach())
    return Value(builder.add(step), "rows", len(weight), x.grid)
