"""Training on a CPU that computes only what heads keep: forward, and back to the input, to the weights and to the gates
of the channels that are kept. A gate of another channel has no gradient, for its choice has none.

The kernels are in ``csrc/sparse_conv.h``. Like the other forms, this one keeps nothing but x, weight and gates for the
backward pass. It takes about twice its share of a dense convolution's time, and to lay out the weights costs as much as
to convolve some hundred pixels. In bfloat16 this is for :mod:`.tile_training` where a CPU multiplies that; else these
kernels compute it in float32.
"""

from ctypes import byref

import torch
from torch import Tensor

from . import native, tile_training
from .geometry import Pair
from .layout import is_channels_last
from .sparse_call import Chosen, planes
from .structs import Conv
from .transforms import has_values

# Share of the channels, from which on all of them are computed no slower. torch is faster in bfloat16.
MOST_KEPT = {torch.float32: 0.7, torch.bfloat16: 0.4}
LEAST_PIXELS = 256  # of all images together
LANES = 16  # weights of a head's outputs are padded to a multiple of these; SPARSE_LANES in the kernels
FAST = ("avx512", "avx2", "avx_vnni")  # what names of instruction sets begin with that beat torch's kernels


def fits(x: Tensor, weight: Tensor, gates: Tensor) -> bool:
    """Whether a layer should say which channels it keeps, so that others can be left out: on a CPU, as planes or with
    channels last, in float32 or bfloat16, and where nobody takes down the operations to do them again elsewhere."""
    is_plain = all(type(part) is Tensor or isinstance(part, torch.nn.Parameter) for part in (x, weight, gates))
    if not is_plain or not has_values(x):
        return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") not in MOST_KEPT:
        return False
    is_dense = all(part.layout is torch.strided and part.dtype in MOST_KEPT for part in (x, weight, gates))
    is_laid_out = x.is_contiguous() or is_channels_last(x)
    return is_dense and is_laid_out and is_there()


def is_there() -> bool:
    """Whether this CPU has kernels that beat torch's."""
    return native.available() and native.isa().startswith(FAST)


def pays(x: Tensor, kept: Tensor | None, pixels: int) -> bool:
    """Whether it is faster than the other forms, for so many pixels of an output."""
    if kept is None or not kept.numel() or not pixels or len(x) * pixels < LEAST_PIXELS:
        return False
    return int(kept.count_nonzero()) <= MOST_KEPT[x.dtype] * kept.numel()


class _Call:
    """What calls of the kernels for one convolution have in common."""

    def __init__(self, x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, size: Pair, *geometry: Pair) -> None:
        stride, padding, dilation = geometry
        self.library, self.threads = native.library(), torch.get_num_threads()
        heads, channels, outputs = gates.shape[1], weight.shape[1], weight.shape[0]
        self.conv = Conv(channels, outputs, *weight.shape[2:], *stride, *padding, *dilation, heads, 1)
        self.chosen = Chosen.of(gates, kept)
        self.rows_shape = (heads, channels, *weight.shape[2:], -(-outputs // heads // LANES) * LANES)
        self.batch = len(x)
        self.common = (byref(self.conv), byref(self.chosen.selection), self.chosen.most, self.batch)
        floats = self.library.dgconv_sparse_scratch_floats(byref(self.conv), self.chosen.most, *size)
        self.scratch = torch.empty(self.threads * floats)
        self.at_work = (self.scratch.data_ptr(), floats, self.threads)

    def rows_of(self, weight: Tensor) -> Tensor:
        """The weights as the kernels read them."""
        rows = torch.empty(self.rows_shape)
        weight = weight.contiguous()
        self.library.dgconv_sparse_pack(byref(self.conv), weight.data_ptr(), rows.data_ptr(), self.threads)
        return rows


def forward(
    x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """The output, of this ``size``."""
    if tile_training.fits(x, stride):
        return tile_training.forward(x, weight, gates, kept, size, stride, padding, dilation)
    like, (x, weight, gates) = x, _floats(x, weight, gates)
    call = _Call(x, weight, gates, kept, size, stride, padding, dilation)
    out = x.new_empty(len(x), weight.shape[0], *size)
    rows = call.rows_of(weight)
    call.library.dgconv_sparse_forward(
        *call.common, byref(planes(x)), byref(planes(out)), rows.data_ptr(), *call.at_work
    )
    return _laid_out_like(like, out)


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and gates, of the latter for those that are kept."""
    if tile_training.fits(x, stride):
        return tile_training.backward(grad, x, weight, gates, kept, stride, padding, dilation)
    like, dtypes = x, (weight.dtype, gates.dtype)
    grad, x, weight, gates = _floats(grad, x, weight, gates)
    call = _Call(x, weight, gates, kept, (grad.shape[2], grad.shape[3]), stride, padding, dilation)
    rows, grad_x, grad_gates = call.rows_of(weight), torch.empty_like(x), torch.empty(gates.shape)
    both = (byref(planes(grad)), byref(planes(x)))
    call.library.dgconv_sparse_backward_input(
        *call.common, *both, byref(planes(grad_x)), rows.data_ptr(), grad_gates.data_ptr(), *call.at_work
    )
    rows.zero_()
    call.library.dgconv_sparse_backward_weight(*call.common, *both, rows.data_ptr(), *call.at_work)
    grad_weight = torch.empty(weight.shape)
    call.library.dgconv_sparse_unpack(byref(call.conv), rows.data_ptr(), grad_weight.data_ptr(), call.threads)
    return _laid_out_like(like, grad_x), grad_weight.to(dtypes[0]), grad_gates.to(dtypes[1])


def _floats(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What the kernels compute with: planes. What is kept for the backward pass stays as it was."""
    planar = torch.contiguous_format  # by itself, it leaves a tensor in float32 that was expanded or permuted as it is
    return tuple(tensor.to(torch.float32, memory_format=planar).contiguous() for tensor in tensors)


def _laid_out_like(x: Tensor, images: Tensor) -> Tensor:
    layout = torch.channels_last if is_channels_last(x) else torch.contiguous_format
    return images.to(x.dtype, memory_format=layout)
