"""The only door to dynamic group convolution: schema, shapes, autograd, and the choice of form."""

import torch
from torch import Tensor
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

from ..errors import UserError
from . import training
from .geometry import Pair, Size2, pair, whole_pair
from .layout import empty_like_layout
from .transforms import composed, transforming


def dynamic_group_conv2d(
    x: Tensor,
    weight: Tensor,
    gates: Tensor,
    stride: Size2 = 1,
    padding: Size2 = 0,
    dilation: Size2 = 1,
    kept: Tensor | None = None,
) -> Tensor:
    """Convolve, for each image and head, the input channels scaled by their gates.

    ``out[b, h::H] = conv2d(x[b] * gates[b, h], weight[h::H])``; the definition is
    :func:`dgconv.ops.reference.dynamic_group_conv2d_reference`.

    Args:
        x: input ``[B, C, height, width]``.
        weight: as in ``nn.Conv2d``, ``[C', C, k, k]``.
        gates: ``[B, H, C]``, zero where head h leaves out channel c of image b.
        stride, padding, dilation: as in ``nn.functional.conv2d``, an int or a pair.
        kept: where channels are kept, ``[B, H, C]`` bool; elsewhere gates are zero and their gradients not wanted. On a
            CPU this may save their time.
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
    geometry = whole_pair("stride", stride, 1), whole_pair("padding", padding, 0), whole_pair("dilation", dilation, 1)
    if transforming():
        return composed(x, weight, gates, *geometry)
    if kept is None:  # not named: graphs that others write down stay as they are
        return torch.ops.dgconv.dynamic_group_conv2d(x, weight, gates, *geometry)
    return torch.ops.dgconv.dynamic_group_conv2d(x, weight, gates, *geometry, kept)


# ``torch.library.custom_op`` would do the same, but its first call imports torch's compiler: a second of every process.
_OP, _BACKWARD = "dgconv::dynamic_group_conv2d", "dgconv::dynamic_group_conv2d_backward"
_INPUTS = (
    "Tensor x, Tensor weight, Tensor gates, SymInt[] stride, SymInt[] padding, SymInt[] dilation, Tensor? kept=None"
)
torch.library.define(_OP, f"({_INPUTS}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
torch.library.define(
    _BACKWARD, f"(Tensor grad, {_INPUTS}) -> (Tensor, Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag
)


@torch.library.impl(_OP, "default")
def _forward(
    x: Tensor, weight: Tensor, gates: Tensor, stride: Pair, padding: Pair, dilation: Pair, kept: Tensor | None = None
) -> Tensor:
    return training.forward(x, weight, gates, pair(stride), pair(padding), pair(dilation), kept)


@torch.library.register_fake(_OP)
def _(
    x: Tensor, weight: Tensor, gates: Tensor, stride: Pair, padding: Pair, dilation: Pair, kept: Tensor | None = None
) -> Tensor:
    size = training.output_size(x, weight, pair(stride), pair(padding), pair(dilation))
    return empty_like_layout(x, (x.shape[0], weight.shape[0], *size))


@torch.library.impl(_BACKWARD, "default")
def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, gates: Tensor, stride: Pair, padding: Pair, dilation: Pair,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return training.backward(grad, x, weight, gates, pair(stride), pair(padding), pair(dilation), kept)


@torch.library.register_fake(_BACKWARD)
def _(grad: Tensor, x: Tensor, weight: Tensor, gates: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = empty_like_layout(x, x.shape)
    return grad_x, weight.new_empty(weight.shape), gates.new_empty(gates.shape)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    x, weight, gates, *ctx.geometry, kept = inputs
    ctx.save_for_backward(x, weight, gates, kept)


def _differentiate(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
    x, weight, gates, kept = ctx.saved_tensors
    grads = torch.ops.dgconv.dynamic_group_conv2d_backward(grad, x, weight, gates, *ctx.geometry, kept)
    return *grads, None, None, None, None


def _refuse(ctx, *grads: Tensor) -> None:  # type: ignore[no-untyped-def]
    raise UserError("dynamic_group_conv2d has first derivatives only; for second ones use torch.func, such as hessian")


torch.library.register_autograd(_OP, _differentiate, setup_context=_save)
torch.library.register_autograd(_BACKWARD, _refuse)


@register_flop_formula(torch.ops.dgconv.dynamic_group_conv2d)
def _flops(x: list[int], weight: list[int], *_: object, out_shape: list[int], **__: object) -> int:
    """FLOPs for torch's own counter. Those left out are multiplied, too, by zero."""
    return conv_flop_count(x, weight, out_shape)


@register_flop_formula(torch.ops.dgconv.dynamic_group_conv2d_backward)
def _flops_backward(grad: list[int], x: list[int], weight: list[int], *_: object, **__: object) -> int:
    return 2 * conv_flop_count(x, weight, grad)


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
    if not gates.shape[1] or weight.shape[0] % gates.shape[1]:
        raise UserError(f"{gates.shape[1]} heads do not divide {weight.shape[0]} output channels")
