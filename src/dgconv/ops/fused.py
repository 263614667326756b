"""Running on a GPU in few kernels: operations that torch would do in five to fifty launches each, in one to five.

A small network's training step is thousands of launches of a few microseconds each. Every function here has a plain
form elsewhere that defines it; :func:`fits` tells when the fused one may stand in.
"""
# mypy: disable-error-code="call-arg"

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from .fused_autograd import (
    AppendGroupedConv3x3,
    AveragePool2x2,
    BatchNormReLU,
    DynamicByHead,
    DynamicPointwise,
    GroupedConv3x3,
    PointwiseConv,
    SaliencyGate,
)
from .geometry import Pair
from .transforms import transforming


def fits(x: Tensor) -> bool:
    """Whether the Triton kernels can take this tensor: on a GPU, in eager mode, outside of ``torch.func``.

    ``DGCONV_TRITON=0`` turns them off; ``DGCONV_TRITON=interpret`` (with Triton's own ``TRITON_INTERPRET=1``) runs them
    on a CPU, slowly, to test them.
    """
    mode = os.environ.get("DGCONV_TRITON", "")
    on_device = type(x) is Tensor and mode != "0" and (x.is_cuda or mode == "interpret")
    return on_device and not torch.compiler.is_compiling() and not transforming() and has_triton()


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


class Room:
    """Memory in which features grow: of all channels that they will have, so that to append to them copies nothing.

    Handed from layer to layer beside the features. Features can grow in one way only: whoever appends to others than
    those that it holds begins anew, with a copy.
    """

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self._memory: Tensor | None = None
        self._filled = 0

    def beginning_with(self, x: Tensor) -> Tensor:
        """All of the memory, its first channels being those of x."""
        memory = self._memory
        is_there = memory is not None and self._filled == x.shape[1] and memory.data_ptr() == x.data_ptr()
        if memory is None or not is_there:
            memory = x.new_empty(x.shape[0], self.channels, *x.shape[2:])
            with torch.no_grad():
                memory[:, : x.shape[1]].copy_(x)
        self._memory, self._filled = memory, 0  # until it is told how far it is filled
        return memory

    def filled_to(self, channels: int) -> None:
        self._filled = channels


def batch_norm_relu(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``relu(batch_norm(x))`` in training mode, ``x`` [B, C, height, width] each image in one piece; x itself; and the
    means of the result's planes, [B, C], if they are known, for a gate that comes next.

    What uses x besides should use the second result: its gradient is then added where the norm's is written.
    """
    return BatchNormReLU.apply(x, weight, bias, running_mean, running_var, momentum, eps)


def batch_norm_relu_eval(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, eps: float
) -> tuple[Tensor, Tensor | None]:
    """``relu(batch_norm(x))`` by the running statistics, where no gradient is wanted, and its means; ``x`` as above."""
    from .triton import batch_norm_relu as kernels

    return kernels.forward_eval(x, weight, bias, running_mean, running_var, eps)


def fits_images(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether the kernels can take this tensor as a contiguous batch of images for this layer. They do not look
    themselves; what is wrong with another tensor torch tells."""
    is_batch = fits(x) and x.dim() == 4 and x.is_contiguous()
    return is_batch and x.shape[1] == conv.in_channels and fits_weight(x, conv.weight)


def fits_weight(x: Tensor, weight: Tensor) -> bool:
    """Whether torch would convolve these: of one dtype, or of what autocast makes of them."""
    return x.dtype == weight.dtype or torch.is_autocast_enabled(x.device.type)


def fits_grouped_conv3x3(x: Tensor) -> bool:
    return x.shape[3] <= 256 and 0 < x.numel() < 2**31


def grouped_conv3x3(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """``conv2d(x, weight, padding=1, groups=groups)`` for groups of few channels, ``x`` contiguous."""
    return GroupedConv3x3.apply(_cast(x), weight, groups)


def append_grouped_conv3x3(features: Tensor, room: Room, x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """``cat([features, grouped_conv3x3(x)], 1)``; the new channels are written into ``room``."""
    memory = room.beginning_with(features)
    grown: Tensor = AppendGroupedConv3x3.apply(features, (memory,), _cast(x), weight, groups)
    room.filled_to(grown.shape[1])
    return grown


def fits_pointwise(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether :func:`pointwise_conv` can stand in for this layer: 1x1, without a bias, on contiguous planes."""
    is_pointwise = conv.kernel_size == conv.stride == (1, 1) and conv.padding in ((0, 0), "valid")
    return fits_images(conv, x) and is_pointwise and conv.bias is None and 0 < x.numel() < 2**31


def pointwise_conv(x: Tensor, weight: Tensor, groups: int = 1, *, interleaved: bool = False) -> Tensor:
    """``conv2d(x, weight, groups=groups)`` for a 1x1 kernel; ``interleaved`` shuffles the groups of the result."""
    return PointwiseConv.apply(_cast(x), weight, groups, interleaved)


def average_pool2x2(x: Tensor) -> Tensor:
    """``avg_pool2d(x, 2)`` for even sizes; torch's own backward pass takes five times as long."""
    return AveragePool2x2.apply(x)


def saliency_gate(
    pooled: Tensor, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: Tensor, threshold: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Generator and gate, [B, C] to saliency, gates and mask [B, H, C]; the global gate with a ``threshold``."""
    return SaliencyGate.apply(pooled, weight1, weight2, bias, keep, threshold)


def dynamic_pointwise(
    x: Tensor, means: Tensor | None, weight: Tensor, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: Tensor,
    threshold: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A whole dynamic layer of kernel size 1, ``x`` contiguous, the means of its planes [B, C] if they are known: its
    output, its saliency and its gate's mask."""
    return DynamicPointwise.apply(_cast(x), means, weight, weight1, weight2, bias, keep, threshold)


def dynamic_by_head(
    x: Tensor, weight: Tensor, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: Tensor, threshold: Tensor | None,
    stride: Pair, padding: Pair, dilation: Pair,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A whole dynamic layer of any kernel size, ``x`` channels last: its output, its saliency and its gate's mask."""
    x, weight = _cast(x), _cast(weight)
    return DynamicByHead.apply(x, weight, weight1, weight2, bias, keep, threshold, stride, padding, dilation)


def result_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a convolution of x, which autocast may change."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _cast(x: Tensor) -> Tensor:
    """What autocast would do to the input of a convolution. The kernels convert the weights as they load them."""
    return x.to(result_dtype(x))
