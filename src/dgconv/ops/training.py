"""The training form: the reference's result and gradients, batched, without H copies of the input.

Forward and backward of ``dynamic_group_conv2d`` as plain functions of tensors. Only x, weight and gates
are needed for the backward pass; everything else is computed again there. Three ways to do it:

- *folded*, for 1x1 convolutions: the gates go into the weight, ``W[o, c] * g[b, h(o), c]``, and one batched
  matrix product does all heads. Costs one ``[B, C', C]`` tensor, whatever the size of the image.
- *by head*, for k x k: one convolution a head on ``x * g_h``. Costs one copy of x at a time.
- *sparse*, on a CPU, if it is known which channels are kept: see :mod:`dgconv.ops.sparse_training`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import sparse_training
from .geometry import Pair
from .layout import empty_like_layout, is_channels_last


def output_size(x: Tensor, weight: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    """Height and width of the output of a convolution."""
    height, width = (
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    )
    return height, width


def forward(
    x: Tensor, weight: Tensor, gates: Tensor, stride: Pair, padding: Pair, dilation: Pair, kept: Tensor | None = None
) -> Tensor:
    size = output_size(x, weight, stride, padding, dilation)
    if min(size) < 1:
        F.conv2d(x, weight, None, stride, padding, dilation)  # torch says what is too small
    if kept is not None and _is_sparse(x, weight, gates, kept, padding, size):
        return sparse_training.forward(x, weight, gates, kept, size, stride, padding, dilation)
    out = empty_like_layout(x, (x.shape[0], weight.shape[0], *size))
    if _folds(weight, gates, padding, size):
        pixels = _pixels(x[:, :, :: stride[0], :: stride[1]])  # [B, C, P]
        _matmul_into(out, _fold(weight, gates), pixels)
    else:
        heads = gates.shape[1]
        for head in range(heads):
            scaled = x * gates[:, head, :, None, None]
            out[:, head::heads] = F.conv2d(scaled, weight[head::heads], None, stride, padding, dilation)
    return out


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, gates: Tensor, stride: Pair, padding: Pair, dilation: Pair,
    kept: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight and gates."""
    if kept is not None and _is_sparse(x, weight, gates, kept, padding, (grad.shape[2], grad.shape[3])):
        return sparse_training.backward(grad, x, weight, gates, kept, stride, padding, dilation)
    grad_x = empty_like_layout(x, x.shape)
    if _folds(weight, gates, padding, (grad.shape[2], grad.shape[3])):
        window = (slice(None), slice(None), slice(None, None, stride[0]), slice(None, None, stride[1]))
        grad_pixels = _pixels(grad)
        if stride == (1, 1):
            _matmul_into(grad_x, _fold(weight, gates).mT, grad_pixels)
        else:
            grad_x.zero_()
            grad_x[window] = (_fold(weight, gates).mT @ grad_pixels).view_as(x[window])
        grad_folded = grad_pixels @ _pixels(x[window]).mT  # [B, C', C]
        grad_folded = grad_folded.unflatten(1, (-1, gates.shape[1]))  # [B, C'/H, H, C]
        grad_weight = (grad_folded * gates[:, None]).sum(0).reshape(weight.shape)
        grad_gates = grad_folded.mul_(_by_head(weight, gates)).sum(1)
        return grad_x, grad_weight, grad_gates

    heads = gates.shape[1]
    grad_x.zero_()
    grad_weight, grad_gates = weight.new_empty(weight.shape), gates.new_empty(gates.shape)
    for head in range(heads):
        gate = gates[:, head, :, None, None]
        grad_scaled, grad_weight[head::heads], _ = torch.ops.aten.convolution_backward(
            grad[:, head::heads], x * gate, weight[head::heads], None, stride, padding, dilation,
            False, (0, 0), 1, (True, True, False),
        )  # fmt: skip
        grad_gates[:, head] = torch.linalg.vecdot(grad_scaled.flatten(2), x.flatten(2))
        grad_x.addcmul_(grad_scaled, gate)
    return grad_x, grad_weight, grad_gates


def _is_sparse(x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, padding: Pair, size: Pair) -> bool:
    if is_channels_last(x) and x.dtype == torch.float32 and _folds(weight, gates, padding, size):
        return False  # one product of matrices as they lie is faster than to make planes first
    return sparse_training.fits(x, weight, gates) and sparse_training.pays(x, kept, size[0] * size[1])


def _folds(weight: Tensor, gates: Tensor, padding: Pair, size: Pair) -> bool:
    """1x1, and the folded weights take less room than H scaled copies of the pixels would."""
    is_pointwise = weight.shape[2:] == (1, 1) and padding == (0, 0)
    return is_pointwise and weight.shape[0] <= gates.shape[1] * size[0] * size[1]


def _by_head(weight: Tensor, gates: Tensor) -> Tensor:
    """A 1x1 weight as [C'/H, H, C]: output channel i*H + h belongs to head h."""
    return weight.flatten(1).unflatten(0, (-1, gates.shape[1]))


def _fold(weight: Tensor, gates: Tensor) -> Tensor:
    """Gates times weight, per image: [B, C', C]."""
    return (_by_head(weight, gates) * gates[:, None]).flatten(1, 2)


def _pixels(x: Tensor) -> Tensor:
    """[B, C, P]: a view in both memory formats, unless a stride left some out."""
    return x.flatten(2)


def _matmul_into(out: Tensor, folded: Tensor, pixels: Tensor) -> None:
    """out = folded @ pixels, written in out's own memory format."""
    flat = out.flatten(2)
    if out.is_contiguous():
        torch.bmm(folded, pixels, out=flat)
    else:  # channels last: the transposed product is the contiguous one
        torch.bmm(pixels.mT, folded.mT, out=flat.mT)
