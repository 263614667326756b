"""One convolution by the native kernels, for tests. See ``csrc/kernels.h``."""

from ctypes import byref
from dataclasses import dataclass

import torch
from torch import Tensor

from dgconv.ops import native
from dgconv.ops.structs import ACTIVATIONS, Conv, Planes, Selection

Pair = tuple[int, int]


@dataclass
class Kept:
    """The channels each head takes, first in its row and ascending, with their gates; the rest of a row is unused."""

    channels: Tensor  # [B, H, C] int32
    gates: Tensor  # [B, H, C]
    counts: Tensor  # [B, H] int32

    @classmethod
    def of(cls, gates: Tensor, mask: Tensor) -> "Kept":
        """From gates and a mask of the channels kept, both [B, H, C]."""
        channels = mask.contiguous().to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices
        return cls(channels.int(), gates.gather(-1, channels).contiguous(), mask.sum(-1, dtype=torch.int32))

    def native(self) -> Selection:
        return Selection(self.channels.data_ptr(), self.gates.data_ptr(), self.counts.data_ptr())


class NativeConv2d:
    """``activation(conv(before(x)) + bias + residual)``, with weights packed once for the instruction set in use.

    Args:
        weight: ``[C', C / groups, k, k]``; for a dynamic convolution ``[C', C, k, k]``.
        groups: groups, or heads if ``dynamic``.
        before: scale and shift by channel and the name of an activation, applied to the input.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        groups: int = 1,
        *,
        dynamic: bool = False,
        interleaved: bool = False,
        before: tuple[Tensor, Tensor, str] | None = None,
        activation: str = "identity",
    ) -> None:
        library = native.library()
        out_channels, in_channels, kernel_h, kernel_w = weight.shape
        self.library, self.padding = library, padding
        self.in_channels = in_channels if dynamic else in_channels * groups
        scale, shift, in_activation = before or (None, None, "identity")
        self.conv = Conv(
            self.in_channels,
            out_channels,
            *(kernel_h, kernel_w, *stride, *padding, *dilation),
            groups=groups,
            dynamic=dynamic,
            interleaved=interleaved,
            in_scale=address(scale),
            in_shift=address(shift),
            in_activation=ACTIVATIONS[in_activation],
            bias=address(bias),
            activation=ACTIVATIONS[activation],
        )
        self.packed = torch.empty(library.dgconv_conv_packed_floats(byref(self.conv)))
        weight = weight.contiguous()  # named, so that it lives until it is read
        library.dgconv_pack_conv(byref(self.conv), address(weight), address(self.packed))
        self.conv.weight = address(self.packed)
        self.kept_alive = (bias, before)

    def __call__(
        self,
        x: Tensor,
        kept: Kept | None = None,
        residual: Tensor | None = None,
        *,
        out: Tensor | None = None,
        with_sums: bool = False,
        threads: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The output and, if asked for, sums of it by plane in some parts, ``[B, C', parts]``.

        ``out`` may be larger at the bottom and right than the padding gives, as if the input were padded more there.
        """
        conv, library, threads = self.conv, self.library, threads or torch.get_num_threads()
        batch, _, height, width = x.shape
        y = x.new_empty(batch, conv.out_channels, *output_size(conv, height, width)) if out is None else out
        size = y.shape[2:]
        parts = library.dgconv_conv_pool_parts(byref(conv), *size)
        sums = x.new_empty(batch, conv.out_channels, parts) if with_sums else None
        scratch_floats = library.dgconv_conv_scratch_floats(byref(conv), height, width, *size)
        scratch = torch.empty(threads, scratch_floats)
        library.dgconv_conv(
            byref(conv),
            byref(kept.native()) if kept else None,
            batch,
            byref(planes(x)),
            byref(planes(y)),
            byref(planes(residual)) if residual is not None else None,
            *(address(sums), address(scratch), scratch_floats, threads),
        )
        return y, sums


def output_size(conv: Conv, height: int, width: int) -> Pair:
    """With the same padding at both sides."""

    def size(length: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
        return (length + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1

    return (
        size(height, conv.kernel_h, conv.stride_h, conv.pad_top, conv.dilation_h),
        size(width, conv.kernel_w, conv.stride_w, conv.pad_left, conv.dilation_w),
    )


def address(tensor: Tensor | None) -> int | None:
    """Of a contiguous float32 tensor on the CPU, which must outlive its use; None for None."""
    if tensor is None:
        return None
    assert tensor.dtype == torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def planes(tensor: Tensor) -> Planes:
    """Of [B, C, height, width], which may be some channels of a wider tensor."""
    batch, channels, height, width = tensor.shape
    address(tensor[0] if batch else tensor)
    return Planes(tensor.data_ptr(), tensor.stride(0), channels, height, width)
