"""As :mod:`.sparse_training`, in bfloat16 on CPUs that multiply it, in tiles (AMX) or in vectors (AVX512-BF16).

No whole tensor becomes float32. The kernels are in ``csrc/sparse_tiles.h``; they take planes, and images with channels
last are brought into these.
"""

from ctypes import byref

import torch
from torch import Tensor

from . import native
from .geometry import Pair
from .layout import is_channels_last
from .sparse_call import Chosen, planes
from .structs import Conv

LANES = 16  # sums of a head's outputs are padded to a multiple of these; WIDTH in the kernels
MOST_SPREAD = 4  # pixels of a stride: on the way back a product is made for each


def fits(x: Tensor, stride: Pair) -> bool:
    return x.dtype == torch.bfloat16 and stride[0] * stride[1] <= MOST_SPREAD and is_there()


def is_there() -> bool:
    """Whether this CPU multiplies bfloat16."""
    return native.available() and bool(native.library().dgconv_can_train_by_tiles())


class _Call:
    """What calls of the kernels for one convolution have in common; x and what has its layout, as planes."""

    def __init__(self, x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, out: Tensor, *geometry: Pair) -> None:
        stride, padding, dilation = geometry
        self.library, self.threads = native.library(), torch.get_num_threads()
        self.heads, self.outputs, self.channels = gates.shape[1], weight.shape[0], weight.shape[1]
        self.taps = weight.shape[2] * weight.shape[3]
        sizes = (self.channels, self.outputs, *weight.shape[2:])
        self.conv = Conv(*sizes, *stride, *padding, *dilation, self.heads, 1)
        self.chosen = Chosen.of(gates.float(), kept)
        self.batch = len(x)
        most = self.chosen.most
        needed = self.library.dgconv_tile_scratch_bytes(byref(self.conv), most, byref(planes(x)), byref(planes(out)))
        self.scratch = torch.empty(self.threads * needed, dtype=torch.uint8)
        self.at_work = (self.scratch.data_ptr(), needed, self.threads)

    def transposed(self, of: Tensor, to: Tensor, rows: int, columns: int) -> Tensor:
        """Each of the matrices that ``of`` is made of, in the memory of ``to``."""
        matrices = of.numel() // max(1, rows * columns)
        self.library.dgconv_tile_transpose(matrices, rows, columns, of.data_ptr(), to.data_ptr(), self.threads)
        return to

    def rows_of(self, weight: Tensor) -> Tensor:
        """The weights as the kernels read them, in the order that they have."""
        rows = torch.empty(self.library.dgconv_tile_rows_words(byref(self.conv)), dtype=weight.dtype)
        self.library.dgconv_tile_pack_rows(byref(self.conv), weight.data_ptr(), rows.data_ptr(), self.threads)
        return rows

    def as_planes(self, images: Tensor) -> Tensor:
        if not is_channels_last(images):
            return images.contiguous()
        room = torch.empty(images.shape, dtype=images.dtype)
        return self.transposed(images, room, images.shape[2] * images.shape[3], images.shape[1])

    def laid_out_like(self, x: Tensor, images: Tensor) -> Tensor:
        if not is_channels_last(x):
            return images
        room = torch.empty_like(images, memory_format=torch.channels_last)
        return self.transposed(images, room, images.shape[1], images.shape[2] * images.shape[3])


def forward(
    x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Tensor:
    """The output, of this ``size``."""
    out = torch.empty(len(x), weight.shape[0], *size, dtype=x.dtype)
    call = _Call(x, weight, gates, kept, out, stride, padding, dilation)
    images, weight = call.as_planes(x), _plain(weight)
    rows = call.rows_of(weight)
    call.library.dgconv_tile_forward(
        byref(call.conv), byref(call.chosen.selection), call.batch, byref(planes(images)), byref(planes(out)),
        rows.data_ptr(), is_channels_last(weight), *call.at_work,
    )  # fmt: skip
    del images
    return call.laid_out_like(x, out)


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, gates: Tensor, kept: Tensor, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and gates, of the latter for those that are kept."""
    call = _Call(x, weight, gates, kept, grad, stride, padding, dilation)
    grads, images = call.as_planes(grad), call.as_planes(x)
    common = (byref(call.conv), byref(call.chosen.selection), call.chosen.most, call.batch)
    both = (byref(planes(grads)), byref(planes(images)))

    weight = _plain(weight)
    by_tap, row = is_channels_last(weight), -(-call.outputs // call.heads // LANES) * LANES
    sums, grad_weight = torch.zeros(call.heads, call.taps * call.channels, row), torch.empty_like(weight)
    call.library.dgconv_tile_backward_weight(*common, *both, sums.data_ptr(), by_tap, *call.at_work)
    call.library.dgconv_tile_unpack_sums(byref(call.conv), sums.data_ptr(), grad_weight.data_ptr(), call.threads)
    del sums
    rows, grad_gates = call.rows_of(weight), torch.empty(gates.shape)
    grad_x = images if is_channels_last(x) else torch.empty_like(images)  # an image is read before it is written
    call.library.dgconv_tile_backward_input(
        *common, *both, byref(planes(grad_x)), rows.data_ptr(), by_tap, grad_gates.data_ptr(), *call.at_work
    )
    del rows, grads
    return call.laid_out_like(x, grad_x), grad_weight, grad_gates.to(gates.dtype)


def _plain(weight: Tensor) -> Tensor:
    return weight if is_channels_last(weight) else weight.contiguous()


def means(x: Tensor) -> Tensor:
    """Of each plane, in float32; torch would convert the planes."""
    found = torch.empty(x.shape[:2])
    x = x if is_channels_last(x) else x.contiguous()
    native.library().dgconv_tile_means(
        len(x), x.shape[1], x.shape[2] * x.shape[3], is_channels_last(x), x.data_ptr(), found.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return found
