"""Training on a CPU that computes only what heads keep: forward, and back to the input, to the weights and to the gates
of the channels that are kept. A gate of another channel has no gradient, for its choice has none.

The kernels are in ``csrc/sparse_conv.h``. Like the other forms, this one keeps nothing but x, weight and gates for the
backward pass. It takes about twice its share of a dense convolution's time, and to lay out the weights costs as much as
to convolve some hundred pixels.
"""

from ctypes import byref, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from . import native
from .geometry import Pair
from .structs import Conv, Planes, Selection
from .transforms import transforming

# Share of the channels, from which on all of them are computed no slower. These kernels compute in float32; torch is
# faster in bfloat16.
MOST_KEPT = {torch.float32: 0.7, torch.bfloat16: 0.4}
LEAST_PIXELS = 256  # of all images together
LANES = 16  # weights of a head's outputs are padded to a multiple of these; SPARSE_LANES in the kernels
FAST = ("avx512", "avx2", "avx_vnni")  # what names of instruction sets begin with that beat torch's kernels


def fits(x: Tensor, weight: Tensor, gates: Tensor) -> bool:
    """Whether a layer should say which channels it keeps, so that others can be left out: on a CPU, contiguous, in
    float32 or bfloat16, and where nobody takes down the operations to do them again elsewhere."""
    is_plain = all(type(part) is Tensor or isinstance(part, torch.nn.Parameter) for part in (x, weight, gates))
    if not is_plain or torch.compiler.is_compiling() or torch.jit.is_tracing() or transforming():
        return False
    if not x.is_cpu or torch._C._len_torch_dispatch_stack():
        return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") not in MOST_KEPT:
        return False
    is_dense = all(part.layout is torch.strided and part.dtype in MOST_KEPT for part in (x, weight, gates))
    return is_dense and x.is_contiguous() and native.available() and native.isa().startswith(FAST)


def pays(x: Tensor, kept: Tensor | None, pixels: int) -> bool:
    """Whether it is faster than the other forms, for so many pixels of an output."""
    if kept is None or not kept.numel() or not pixels or len(x) * pixels < LEAST_PIXELS:
        return False
    return int(kept.count_nonzero()) <= MOST_KEPT[x.dtype] * kept.numel()


@dataclass
class _Chosen:
    """The channels that each head of each image keeps, as the kernels take them."""

    selection: Selection
    most: int
    memory: tuple[Tensor, ...]  # which the selection points to

    @classmethod
    def of(cls, gates: Tensor, kept: Tensor) -> "_Chosen":
        gates, kept = gates.contiguous(), kept.contiguous()
        channels = torch.empty(gates.shape, dtype=torch.int32)
        chosen_gates, counts = torch.empty_like(gates), torch.empty(gates.shape[:2], dtype=torch.int32)
        memory = (channels, chosen_gates, counts)
        most = native.library().dgconv_sparse_select(
            kept.data_ptr(), gates.data_ptr(), counts.numel(), gates.shape[2], *(part.data_ptr() for part in memory)
        )
        return cls(Selection(*(part.data_ptr() for part in memory)), max(1, most), memory)


class _Call:
    """What calls of the kernels for one convolution have in common."""

    def __init__(self, x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, size: Pair, *geometry: Pair) -> None:
        stride, padding, dilation = geometry
        self.library, self.threads = native.library(), torch.get_num_threads()
        heads, channels, outputs = gates.shape[1], weight.shape[1], weight.shape[0]
        self.conv = Conv(channels, outputs, *weight.shape[2:], *stride, *padding, *dilation, heads, 1)
        self.chosen = _Chosen.of(gates, kept)
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


def _planes(images: Tensor) -> Planes:
    return Planes(c_void_p(images.data_ptr()), images[0].numel(), *images.shape[1:])


def forward(
    x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """The output, of this ``size``."""
    dtype, (x, weight, gates) = x.dtype, _floats(x, weight, gates)
    call = _Call(x, weight, gates, kept, size, stride, padding, dilation)
    out = x.new_empty(len(x), weight.shape[0], *size)
    rows = call.rows_of(weight)
    call.library.dgconv_sparse_forward(
        *call.common, byref(_planes(x)), byref(_planes(out)), rows.data_ptr(), *call.at_work
    )
    return out.to(dtype)


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and gates, of the latter for those that are kept."""
    dtypes = x.dtype, weight.dtype, gates.dtype
    grad, x, weight, gates = _floats(grad.contiguous(), x, weight, gates)
    call = _Call(x, weight, gates, kept, (grad.shape[2], grad.shape[3]), stride, padding, dilation)
    rows, grad_x, grad_gates = call.rows_of(weight), torch.empty_like(x), torch.empty(gates.shape)
    both = (byref(_planes(grad)), byref(_planes(x)))
    call.library.dgconv_sparse_backward_input(
        *call.common, *both, byref(_planes(grad_x)), rows.data_ptr(), grad_gates.data_ptr(), *call.at_work
    )
    rows.zero_()
    call.library.dgconv_sparse_backward_weight(*call.common, *both, rows.data_ptr(), *call.at_work)
    grad_weight = torch.empty(weight.shape)
    call.library.dgconv_sparse_unpack(byref(call.conv), rows.data_ptr(), grad_weight.data_ptr(), call.threads)
    gradients = grad_x, grad_weight, grad_gates
    return tuple(part.to(dtype) for part, dtype in zip(gradients, dtypes, strict=True))  # type: ignore[return-value]


def _floats(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What the kernels compute with. What is kept for the backward pass stays as it was."""
    return tuple(tensor.float() for tensor in tensors)
