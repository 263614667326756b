"""Running on a GPU in few kernels: operations that torch would do in five to fifty launches each, in one to five.

A small network's training step is thousands of launches of a few microseconds each. Every function here has a plain
form elsewhere that defines it; :func:`fits` tells when the fused one may stand in.
"""
# mypy: disable-error-code="call-arg"

import os
from functools import cache
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .overlap import beside

Pair = tuple[int, int]


def fits(x: Tensor) -> bool:
    """Whether the Triton kernels can take this tensor: on a GPU, in eager mode.

    ``DGCONV_TRITON=0`` turns them off; ``DGCONV_TRITON=interpret`` (with Triton's own ``TRITON_INTERPRET=1``) runs them
    on a CPU, slowly, to test them.
    """
    mode = os.environ.get("DGCONV_TRITON", "")
    on_device = type(x) is Tensor and mode != "0" and (x.is_cuda or mode == "interpret")
    return on_device and not torch.compiler.is_compiling() and has_triton()


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def batch_norm_relu(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    """``relu(batch_norm(x))`` in training mode, ``x`` [B, C, height, width] of :func:`whole_images`; and x itself.

    What uses x besides should use the second result: its gradient is then added where the norm's is written.
    """
    out, same, means = _BatchNormReLU.apply(x, weight, bias, running_mean, running_var, momentum, eps)
    if means is not None:
        out.dgconv_means = means  # for a gate that comes next
    room = x.__dict__.pop("dgconv_room", None)
    if room is not None:
        same.dgconv_room = room
    return out, same


def batch_norm_relu_eval(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """``relu(batch_norm(x))`` by the running statistics, where no gradient is wanted; ``x`` as above."""
    from .triton import batch_norm_relu as kernels

    out, means = kernels.forward_eval(x, weight, bias, running_mean, running_var, eps)
    if means is not None:
        out.dgconv_means = means  # type: ignore[attr-defined]
    return out


def fits_grouped_conv3x3(x: Tensor) -> bool:
    return x.shape[3] <= 256 and 0 < x.numel() < 2**31


def grouped_conv3x3(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """``conv2d(x, weight, padding=1, groups=groups)`` for groups of few channels, ``x`` contiguous."""
    return _GroupedConv3x3.apply(_cast(x), weight, groups)


def append_grouped_conv3x3(features: Tensor, room: Tensor, x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """``cat([features, grouped_conv3x3(x)], 1)`` without a copy: the new channels are written into ``room``."""
    grown = _AppendGroupedConv3x3.apply(features, (room,), _cast(x), weight, groups)
    if grown.shape[1] < room.shape[1]:
        grown.dgconv_room = room
    return grown


def take_room(x: Tensor, channels: int) -> Tensor:
    """A tensor of so many channels that begins with those of x: where x lies, if it was appended to before.

    Taken, because x can grow in one way only: whoever asks for it a second time gets a copy.
    """
    room = x.__dict__.pop("dgconv_room", None)
    if room is None or room.shape[1] != channels:
        room = x.new_empty(x.shape[0], channels, *x.shape[2:])
        with torch.no_grad():
            room[:, : x.shape[1]].copy_(x)
    return room


def whole_images(x: Tensor) -> bool:
    """Whether each image lies in one piece, as those of a part of a wider tensor do."""
    return x[:1].is_contiguous()


def fits_pointwise(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether :func:`pointwise_conv` can stand in for this layer: 1x1, without a bias, on contiguous planes."""
    is_pointwise = conv.kernel_size == conv.stride == (1, 1) and conv.padding in ((0, 0), "valid")
    return (
        fits(x) and x.dim() == 4 and is_pointwise and conv.bias is None and x.is_contiguous() and 0 < x.numel() < 2**31
    )


def pointwise_conv(x: Tensor, weight: Tensor, groups: int = 1, *, interleaved: bool = False) -> Tensor:
    """``conv2d(x, weight, groups=groups)`` for a 1x1 kernel; ``interleaved`` shuffles the groups of the result."""
    return _PointwiseConv.apply(_cast(x), weight, groups, interleaved)


def average_pool2x2(x: Tensor) -> Tensor:
    """``avg_pool2d(x, 2)`` for even sizes; torch's own backward pass takes five times as long."""
    return _AveragePool2x2.apply(x)


def saliency_gate(
    pooled: Tensor, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: Tensor, threshold: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Generator and gate, [B, C] to saliency, gates and mask [B, H, C]; the global gate with a ``threshold``."""
    return _SaliencyGate.apply(pooled, weight1, weight2, bias, keep, threshold)


def dynamic_pointwise(
    x: Tensor, weight: Tensor, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: Tensor, threshold: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """A whole dynamic layer of kernel size 1, ``x`` contiguous: its output, its saliency and its gate's mask."""
    means = getattr(x, "dgconv_means", None)
    return _DynamicPointwise.apply(_cast(x), means, weight, weight1, weight2, bias, keep, threshold)


def dynamic_by_head(
    x: Tensor, weight: Tensor, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: Tensor, threshold: Tensor | None,
    stride: Pair, padding: Pair, dilation: Pair,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A whole dynamic layer of any kernel size, ``x`` channels last: its output, its saliency and its gate's mask."""
    x, weight = _cast(x), _cast(weight)
    return _DynamicByHead.apply(x, weight, weight1, weight2, bias, keep, threshold, stride, padding, dilation)


def result_dtype(x: Tensor) -> torch.dtype:
    """Of a convolution of x, which autocast may change."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _cast(x: Tensor) -> Tensor:
    """What autocast would do to the input of a convolution. The kernels convert the weights as they load them."""
    return x.to(result_dtype(x))


def _in_one_piece(grad: Tensor) -> Tensor:
    """As it is, if each image lies in one piece: so do the parts of the gradient of a concatenation."""
    return grad if whole_images(grad) else grad.contiguous()


class _BatchNormReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):  # type: ignore[no-untyped-def]
        from .triton import batch_norm_relu as kernels

        out, mean, invstd, means = kernels.forward(x, weight, bias, running_mean, running_var, momentum, eps)
        ctx.save_for_backward(x, weight, bias, mean, invstd)
        ctx.set_materialize_grads(False)
        if means is not None:
            ctx.mark_non_differentiable(means)
        return out, x.view_as(x), means

    @staticmethod
    def backward(ctx, grad, grad_input, _):  # type: ignore[no-untyped-def]
        from .triton import batch_norm_relu as kernels

        grad_input = None if grad_input is None else _in_one_piece(grad_input)
        return *kernels.backward(grad.contiguous(), *ctx.saved_tensors, grad_input), None, None, None, None


class _GroupedConv3x3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, groups):  # type: ignore[no-untyped-def]
        from .triton import grouped_conv3x3 as kernels

        ctx.save_for_backward(x, weight)
        ctx.groups = groups
        return kernels.forward(x, weight, groups)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return *_conv3x3_gradients(_in_one_piece(grad), *ctx.saved_tensors, ctx.groups), None


class _AppendGroupedConv3x3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, room, x, weight, groups):  # type: ignore[no-untyped-def]
        from .triton import grouped_conv3x3 as kernels

        ctx.save_for_backward(x, weight)
        ctx.groups, ctx.channels, added = groups, features.shape[1], weight.shape[0]
        kernels.forward(x, weight, groups, room[0].narrow(1, ctx.channels, added))
        return room[0].narrow(1, 0, ctx.channels + added)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        grad = _in_one_piece(grad)
        of_features, of_conv = grad[:, : ctx.channels], grad[:, ctx.channels :]
        return of_features, None, *_conv3x3_gradients(of_conv, *ctx.saved_tensors, ctx.groups), None


def _conv3x3_gradients(grad: Tensor, x: Tensor, weight: Tensor, groups: int) -> tuple[Tensor, Tensor | None]:
    from .triton import grouped_conv3x3 as kernels

    arguments = (grad, x, weight, groups)
    (grad_weight,) = beside((weight,), lambda: (kernels.weight_gradient(*arguments),), read=(grad, x))
    return kernels.input_gradient(*arguments), grad_weight


class _PointwiseConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, groups, interleaved):  # type: ignore[no-untyped-def]
        from .triton import pointwise_conv as kernels

        ctx.save_for_backward(x, weight)
        ctx.options = groups, interleaved
        return kernels.forward(x.flatten(2), weight.flatten(1), groups, interleaved).unflatten(2, x.shape[2:])

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        from .triton import pointwise_conv as kernels
        from .triton.pointwise import sum_parts

        x, weight = ctx.saved_tensors
        arguments = (grad.contiguous().flatten(2), x.flatten(2), weight.flatten(1), *ctx.options)

        def of_weight() -> tuple[Tensor]:
            return (sum_parts(kernels.weight_gradient_parts(*arguments)).view_as(weight).to(weight.dtype),)

        (grad_weight,) = beside((weight,), of_weight, read=arguments[:2])
        return kernels.input_gradient(*arguments).view_as(x), grad_weight, None, None


class _AveragePool2x2(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return F.avg_pool2d(x, 2)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return F.interpolate(grad * 0.25, scale_factor=2, mode="nearest")


class _SaliencyGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, pooled, weight1, weight2, bias, keep, threshold):  # type: ignore[no-untyped-def]
        from .triton import saliency_gate as kernels

        signed = threshold is not None
        saliency, gates, hidden, kept = kernels.forward(pooled, weight1, weight2, bias, keep, threshold, signed)
        ctx.save_for_backward(saliency, kept, hidden, pooled, weight1, weight2)
        ctx.signed = signed
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(kept)
        return saliency, gates, kept

    @staticmethod
    def backward(ctx, grad_saliency, grad_gates, _):  # type: ignore[no-untyped-def]
        from .triton import saliency_gate as kernels

        return *kernels.backward(grad_gates, grad_saliency, *ctx.saved_tensors, ctx.signed), None, None


class _DynamicPointwise(torch.autograd.Function):
    """Pooling, generator, gate and convolution. In the backward pass the gradient that reaches x through the pooling
    is added where the gradient through the convolution is written."""

    @staticmethod
    def forward(ctx, x, means, weight, weight1, weight2, bias, keep, threshold):  # type: ignore[no-untyped-def]
        from .triton import pointwise
        from .triton import saliency_gate as gate

        signed = threshold is not None
        pooled = gate.pool(x) if means is None else means
        saliency, gates, hidden, kept, folded = gate.forward_folded(
            pooled, weight1, weight2, bias, keep, threshold, signed, weight.flatten(1), x.dtype
        )
        out = pointwise.forward(x.flatten(2), folded)
        ctx.save_for_backward(x, weight, gates, folded, bias, saliency, kept, hidden, pooled, weight1, weight2)
        ctx.signed = signed
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(kept)
        return out.view(x.shape[0], -1, *x.shape[2:]), saliency, kept

    @staticmethod
    def backward(ctx, grad, grad_saliency, _):  # type: ignore[no-untyped-def]
        from .triton import pointwise
        from .triton import saliency_gate as gate

        x, weight, gates, folded, bias, *generator = ctx.saved_tensors
        grad, flat = grad.contiguous().flatten(2), weight.flatten(1)
        parts, grad_gates = pointwise.parameter_gradients(grad, x.flatten(2), flat, gates)
        (grad_weight,) = beside((weight,), lambda: (pointwise.sum_parts(parts).view_as(weight),), read=(parts,))
        generator_back = gate.Backward(grad_gates, grad_saliency, *generator, ctx.signed)
        grad_generator = beside((*generator[-2:], bias), generator_back.of_parameters, read=generator_back.read)
        grad_x = pointwise.input_gradient(grad, folded, x.shape[1], generator_back.of_pooled())
        return grad_x.view_as(x), None, grad_weight, *grad_generator, None, None


class _DynamicByHead(torch.autograd.Function):
    """Pooling, generator, gate, and one convolution a head by cuDNN on copies of x that are made again going back."""

    @staticmethod
    def forward(ctx, x, weight, weight1, weight2, bias, keep, threshold, stride, padding, dilation):  # type: ignore[no-untyped-def]
        from .triton import head_copies
        from .triton import saliency_gate as gate

        signed, heads = threshold is not None, weight1.shape[0]
        pooled = x.mean((2, 3), dtype=torch.float32)
        saliency, gates, hidden, kept = gate.forward(pooled, weight1, weight2, bias, keep, threshold, signed)
        parts = [
            F.conv2d(copy, part, None, stride, padding, dilation)
            for copy, part in zip(head_copies.scale(x, gates), _weight_parts(weight, heads), strict=True)
        ]
        ctx.save_for_backward(x, weight, gates, saliency, kept, hidden, pooled, weight1, weight2)
        ctx.signed, ctx.geometry = signed, (stride, padding, dilation, False, (0, 0), 1)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(kept)
        return head_copies.interleave(parts), saliency, kept

    @staticmethod
    def backward(ctx, grad, grad_saliency, _):  # type: ignore[no-untyped-def]
        from .triton import head_copies
        from .triton import saliency_gate as gate

        x, weight, gates, *generator = ctx.saved_tensors
        heads = gates.shape[1]
        grads = head_copies.separate(grad.contiguous(memory_format=torch.channels_last), heads)
        grad_copies, grad_weights = [], []
        for part, copy, weights in zip(grads, head_copies.scale(x, gates), _weight_parts(weight, heads), strict=True):
            grad_copy, grad_weight, _ = torch.ops.aten.convolution_backward(
                part, copy, weights, None, *ctx.geometry, (True, True, False)
            )
            grad_copies.append(grad_copy)
            grad_weights.append(grad_weight)
        grad_x, grad_gates = head_copies.combine(grad_copies, x, gates)
        grad_pooled, *grad_generator = gate.backward(grad_gates, grad_saliency, *generator, ctx.signed)
        head_copies.add_pooled(grad_x, grad_pooled)
        return grad_x, torch.stack(grad_weights, 1).flatten(0, 1), *grad_generator, *[None] * 5


def _weight_parts(weight: Tensor, heads: int) -> list[Tensor]:
    """The filters of each head, channels last."""
    by_head = weight.unflatten(0, (-1, heads)).permute(1, 0, 3, 4, 2).contiguous()  # [H, O, k, k, C]
    return [part.permute(0, 3, 1, 2) for part in by_head]
