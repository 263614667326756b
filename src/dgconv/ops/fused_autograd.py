"""The fused operations as autograd functions: which kernels run forward and backward, and what is kept in between.

Gradients of parameters that nothing waits for are computed :func:`~dgconv.ops.overlap.beside` the backward pass.
"""
# mypy: disable-error-code="call-arg"

import torch
import torch.nn.functional as F
from torch import Tensor

from .overlap import beside


def whole_images(x: Tensor) -> bool:
    """Whether each image lies in one piece, as those of a part of a wider tensor do."""
    return x[:1].is_contiguous()


def _in_one_piece(grad: Tensor) -> Tensor:
    """The gradient as it is, if each image lies in one piece: so do the parts of the gradient of a concatenation."""
    return grad if whole_images(grad) else grad.contiguous()


class BatchNormReLU(torch.autograd.Function):
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
        from .triton import batch_norm_relu_backward as kernels

        grad_input = None if grad_input is None else _in_one_piece(grad_input)
        return *kernels.backward(grad.contiguous(), *ctx.saved_tensors, grad_input), None, None, None, None


class GroupedConv3x3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, groups):  # type: ignore[no-untyped-def]
        from .triton import grouped_conv3x3 as kernels

        ctx.save_for_backward(x, weight)
        ctx.groups = groups
        return kernels.forward(x, weight, groups)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return *_conv3x3_gradients(_in_one_piece(grad), *ctx.saved_tensors, ctx.groups), None


class AppendGroupedConv3x3(torch.autograd.Function):
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


class PointwiseConv(torch.autograd.Function):
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


class AveragePool2x2(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return F.avg_pool2d(x, 2)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return F.interpolate(grad * 0.25, scale_factor=2, mode="nearest")


class SaliencyGate(torch.autograd.Function):
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
        from .triton import saliency_gate_backward as kernels

        return *kernels.backward(grad_gates, grad_saliency, *ctx.saved_tensors, ctx.signed), None, None


class DynamicPointwise(torch.autograd.Function):
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
        from .triton import saliency_gate_backward as gate

        x, weight, gates, folded, bias, *generator = ctx.saved_tensors
        grad, flat = grad.contiguous().flatten(2), weight.flatten(1)
        parts, grad_gates = pointwise.parameter_gradients(grad, x.flatten(2), flat, gates)
        (grad_weight,) = beside((weight,), lambda: (pointwise.sum_parts(parts).view_as(weight),), read=(parts,))
        generator_back = gate.Backward(grad_gates, grad_saliency, *generator, ctx.signed)
        grad_generator = beside((*generator[-2:], bias), generator_back.of_parameters, read=generator_back.read)
        grad_x = pointwise.input_gradient(grad, folded, x.shape[1], generator_back.of_pooled())
        return grad_x.view_as(x), None, grad_weight, *grad_generator, None, None


class DynamicByHead(torch.autograd.Function):
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
        from .triton import saliency_gate_backward as gate

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
