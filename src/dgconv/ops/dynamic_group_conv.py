"""The only door to dynamic group convolution: schema, shapes, autograd, and the choice of form."""

import torch
from torch import Tensor

from ..errors import UserError
from . import training
from .layout import empty_like_layout
from .transforms import composed, transforming

Size2 = int | tuple[int, int] | list[int]


def dynamic_group_conv2d(
    x: Tensor, weight: Tensor, gates: Tensor, stride: Size2 = 1, padding: Size2 = 0, dilation: Size2 = 1
) -> Tensor:
    """Convolve, for each image and head, the input channels scaled by their gates.

    ``out[b, h::H] = conv2d(x[b] * gates[b, h], weight[h::H])``; the definition is
    :func:`dgconv.ops.reference.dynamic_group_conv2d_reference`.

    Args:
        x: input ``[B, C, height, width]``.
        weight: as in ``nn.Conv2d``, ``[C', C, k, k]``.
        gates: ``[B, H, C]``, zero where head h leaves out channel c of image b.
        stride, padding, dilation: as in ``nn.functional.conv2d``, an int or a pair.
    """
    _check_shapes(x, weight, gates)
    device_type = x.device.type
    if not x.is_meta and torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        x, weight, gates = x.to(dtype), weight.to(dtype), gates.to(dtype)
    if not x.dtype == weight.dtype == gates.dtype:
        raise UserError(
            f"x, weight and gates must have one dtype, got {x.dtype}, {weight.dtype} and {gates.dtype}; "
            "convert the input (or the module) with .to(), or use torch.autocast"
        )
    form = composed if transforming() else torch.ops.dgconv.dynamic_group_conv2d
    return form(x, weight, gates, _pair(stride), _pair(padding), _pair(dilation))


@torch.library.custom_op("dgconv::dynamic_group_conv2d", mutates_args=())
def _forward(
    x: Tensor, weight: Tensor, gates: Tensor, stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    return training.forward(x, weight, gates, _pair(stride), _pair(padding), _pair(dilation))


@_forward.register_fake
def _(x: Tensor, weight: Tensor, gates: Tensor, stride: list[int], padding: list[int], dilation: list[int]) -> Tensor:
    size = training.output_size(x, weight, _pair(stride), _pair(padding), _pair(dilation))
    return empty_like_layout(x, (x.shape[0], weight.shape[0], *size))


@torch.library.custom_op("dgconv::dynamic_group_conv2d_backward", mutates_args=())
def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    gates: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    return training.backward(grad, x, weight, gates, _pair(stride), _pair(padding), _pair(dilation))


@_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    gates: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = empty_like_layout(x, x.shape)
    return grad_x, weight.new_empty(weight.shape), gates.new_empty(gates.shape)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, gates, ctx.stride, ctx.padding, ctx.dilation = inputs
    ctx.save_for_backward(x, weight, gates)


def _differentiate(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
    grads = torch.ops.dgconv.dynamic_group_conv2d_backward(
        grad, *ctx.saved_tensors, ctx.stride, ctx.padding, ctx.dilation
    )
    return *grads, None, None, None


_forward.register_autograd(_differentiate, setup_context=_save)


def _pair(value: Size2) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _check_shapes(x: Tensor, weight: Tensor, gates: Tensor) -> None:
    if x.dim() != 4 or weight.dim() != 4 or gates.dim() != 3:
        raise UserError(
            "dynamic_group_conv2d takes x [B, C, height, width], weight [C', C, k, k] and gates [B, H, C]; "
            f"got shapes {list(x.shape)}, {list(weight.shape)} and {list(gates.shape)}"
        )
    if x.shape[1] != weight.shape[1]:
        raise UserError(f"the input has {x.shape[1]} channels, the weight expects {weight.shape[1]}")
    if gates.shape[0] != x.shape[0] or gates.shape[2] != x.shape[1]:
        raise UserError(
            f"gates must be [batch, heads, channels] = [{x.shape[0]}, H, {x.shape[1]}], got {list(gates.shape)}"
        )
    if weight.shape[0] % gates.shape[1]:
        raise UserError(f"{gates.shape[1]} heads do not divide {weight.shape[0]} output channels")
