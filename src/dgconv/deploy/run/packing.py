"""Steps as the native program wants them: weights repacked once, whatever depends on the image size left open."""

from ctypes import byref

import torch

from ...errors import UserError
from ...ops import native, structs
from ...ops.native import library
from ..graph import (
    BYTE_STEPS,
    Concat,
    Conv,
    Elementwise,
    GlobalPool,
    LayerNorm,
    Linear,
    Norm,
    Pad,
    Pool,
    Resize,
    Slice,
    Step,
    Torch,
)
from ..rules import problem
from .byte_packing import pack_bytes
from .channel_order import Order
from .memory import PackedMemory
from .packed import NativeStep, sound_size
from .shapes import Shape

SOME_ADDRESS = 1  # that nobody reads from


def unsupported(step: Step) -> str | None:
    """Why a step cannot be native; None if it can."""
    if isinstance(step, Torch):
        return step.reason or "left to torch"
    if broken := problem(step):
        return broken  # torch will say why it cannot be, or knows what to do
    if isinstance(step, Conv) and step.expansion is not None and not can_join(step.expansion, step):
        return "the two convolutions that it joins have no kernel for both"
    return None


def can_join(first: Conv, then: Conv) -> bool:
    """Whether a convolution can be a part of the one that reads it: asked of the kernels, as far as they can tell."""
    has_residual = first.residual is not None or then.residual is not None
    grows = any(first.extra_padding) and first.weight.shape[2:] == (1, 1)  # which a kernel that reads in place does not
    if has_residual or grows or not native.available():
        return False
    return bool(library().dgconv_can_expand(byref(_header(first)), byref(_header(then))))


def _header(step: Conv) -> structs.Conv:
    """What is known of a convolution without its weights. Where it has a norm or a boost, there is some address."""
    outputs, inputs, *kernel = step.weight.shape
    return structs.Conv(
        inputs * step.groups,
        outputs,
        *(*kernel, *step.stride, *step.padding, *step.dilation),
        groups=len(step.gate.bias) if step.gate else len(step.picks) if step.picks else step.groups,
        dynamic=step.gate is not None or step.picks is not None,
        in_scale=None if step.before is None else SOME_ADDRESS,
        activation=structs.ACTIVATIONS[step.activation],
        interleaved=step.interleaved,
        beta=None if step.boost is None else SOME_ADDRESS,
    )


class PackedStep(NativeStep):
    """A native step that lacks only the places of what it reads and writes."""

    def __init__(
        self,
        step: Step,
        memory: PackedMemory,
        orders: dict[str, Order] | None = None,
        *,
        few_pixels: bool = False,
    ) -> None:
        super().__init__(memory)
        self._step, self._is_for_few = step, few_pixels
        self._for_few: PackedStep | None = None
        if reason := unsupported(step):
            raise UserError(f"{type(step).__name__} step {step.output!r} cannot be native: {reason}")
        match step:
            case _ if isinstance(step, BYTE_STEPS):
                pack_bytes(self, step, orders or {})
            case Conv():
                self._pack_conv(step)
            case Pool():
                self.native.kind = structs.POOL
                self.native.before = self._norm(step.before)
                is_max = step.kind == "max"
                self.native.window = structs.Window(is_max, *step.kernel, *step.stride, *step.padding)
            case GlobalPool():
                self.native.kind = structs.GLOBAL_POOL
                self.native.before = self._norm(step.before)
            case Linear():
                self.native.kind = structs.LINEAR
                is_bytes = step.scale is not None
                self.native.weight = self.copy_bytes(step.weight) if is_bytes else self.address(step.weight)
                self.native.scale, self.native.bias = self.address(step.scale), self.address(step.bias)
                self.native.activation = structs.ACTIVATIONS[step.activation]
            case Elementwise():
                self.native.kind = structs.ELEMENTWISE
                self.native.before = self._norm(step.norm)
                self.native.activation = structs.ACTIVATIONS[step.activation]
                if step.order is not None:
                    order = torch.tensor(step.order, dtype=torch.int32, device="cpu")
                    self.native.order = self.integers(order)
            case LayerNorm():
                self.native.kind = structs.LAYER_NORM
                self.native.before = self._norm(Norm(step.scale, step.shift))
                self.native.epsilon = step.epsilon
            case Resize():
                self.native.kind = structs.RESIZE  # by how much, the plan knows
                self.native.resize = structs.Resize(step.kind == "bilinear", step.aligns_corners)
            case Pad():
                self.native.kind = structs.PAD
                self.native.window = structs.Window(pad_top=step.padding[0], pad_left=step.padding[1])
            case Concat() | Slice():
                pass  # parts that are not in place yet are copied; the plan knows which

    def _pack_conv(self, step: Conv) -> None:
        self.native.kind = structs.CONV
        self.native.before = self._norm(step.before)
        if step.expansion is not None:
            self.native.kind = structs.EXPAND
            self.native.expansion = self._packed_conv(step.expansion, structs.Norm())
        self.native.conv = self._packed_conv(step, self.native.before)
        if step.picks is not None:
            self.native.kind = structs.DYNAMIC_CONV
            self.native.gate = structs.Gate(step.weight.shape[1], len(step.picks))
        if step.gate is not None:
            self.native.kind = structs.DYNAMIC_CONV
            self.pack_gate(step.gate)
        if step.boost is not None:
            self.native.kind = structs.WINNERS_CONV
            self.native.gate = structs.Gate(
                *(len(step.boost.bias), 1, step.boost.weight.shape[1]),
                weight2=self.address(step.boost.weight.T),
                beta=self.address(step.boost.bias),
                keep=step.boost.keep,
            )

    def for_planes(self, shape: Shape) -> "PackedStep":
        """The step packed as is best for a result of this shape: for small planes once more, when there first are
        such."""
        is_conv = isinstance(self._step, Conv) and self.native.kind in (structs.CONV, structs.DYNAMIC_CONV)
        if not is_conv or self._is_for_few:
            return self
        if not library().dgconv_conv_has_few_pixels(byref(self.native.conv), *shape[1:]):
            return self
        if self._for_few is None:
            self._for_few = PackedStep(self._step, self._memory, few_pixels=True)
        return self._for_few

    @property
    def chosen_bytes(self) -> int:
        """What a gate's choice of weights takes, to be kept from run to run."""
        conv = self.native.bytes
        if self.native.kind != structs.BYTE_CONV or conv.chooses != structs.GATED:
            return 0
        return sound_size(library().dgconv_chosen_bytes(byref(conv)), "its choice")

    def _packed_conv(self, step: Conv, before: structs.Norm) -> structs.Conv:
        conv = _header(step)
        conv.few_pixels = self._is_for_few
        conv.in_scale, conv.in_shift, conv.in_activation = before.scale, before.shift, before.activation
        conv.bias = self.address(step.bias)
        conv.beta = None if step.boost is None else self.address(step.boost.shift)
        packed = self._empty(sound_size(library().dgconv_conv_packed_floats(byref(conv)), step.output))
        weight = step.weight.detach().contiguous()  # named, so that it lives until it is read
        library().dgconv_pack_conv(byref(conv), weight.data_ptr(), packed.data_ptr())
        conv.weight = packed.data_ptr()
        return conv

    @property
    def regions(self) -> list[structs.Region]:
        """Memory that is read in each run, in this order; what is small is not worth naming.

        Last comes the second matrix of a generator, of which about half is read.
        """
        first, last = [], []
        if self._packed_gate is not None:
            weight1, weight2, *numbers = self._packed_gate._tensors
            first, last = [weight1, *numbers], [weight2]
        reads_weights = self.native.bytes.chooses != structs.GATED  # else what was chosen of them
        tensors = [*first, *(self._tensors if reads_weights else []), *last]
        return [structs.Region(tensor.data_ptr(), tensor.numel()) for tensor in tensors if tensor.numel() >= 1024]

    def _norm(self, norm: Norm | None) -> structs.Norm:
        if norm is None:
            return structs.Norm()
        return structs.Norm(self.address(norm.scale), self.address(norm.shift), structs.ACTIVATIONS[norm.activation])
