"""Steps as the native program wants them: weights repacked once, whatever depends on the image size left open."""

from ctypes import byref

import torch
from torch import Tensor

from ..errors import UserError
from ..ops import structs
from ..ops.native import library
from .graph import Concat, Conv, GateSpec, GlobalPool, Linear, Norm, Pointwise, Pool, Step, Torch
from .memory import Memory


def unsupported(step: Step) -> str | None:
    """Why a step cannot be native; None if it can."""
    if isinstance(step, Torch):
        return step.reason or "left to torch"
    if isinstance(step, Conv) and step.gate is not None and step.gate.keep is None and step.gate.threshold is None:
        return "its gate says neither how many channels to keep nor from which saliency on"
    if isinstance(step, Conv) and step.expansion is not None and (reason := unsupported(step.expansion)):
        return reason
    tensors = [value for value in vars(step).values() if isinstance(value, Tensor)]
    if any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in tensors):
        return "native steps hold float32 tensors on the CPU"
    if not _fits_together(step):
        return "its sizes do not fit each other"  # torch will say why, or knows what to do
    return None


def _fits_together(step: Step) -> bool:
    """Whether all that a step reads is as large as the kernels, which look at nothing, take it to be."""
    norm = getattr(step, "before", None) or getattr(step, "norm", None)
    if norm is not None and not _is_row(norm.shift, len(norm.scale)):
        return False
    match step:
        case Conv():
            return _conv_fits_together(step)
        case Pool():
            is_window = min(*step.kernel, *step.stride) >= 1 and min(step.padding) >= 0
            return is_window and all(2 * pad <= size for pad, size in zip(step.padding, step.kernel, strict=True))
        case Linear():
            return step.weight.dim() == 2 and _is_row(step.bias, len(step.weight))
        case Pointwise() if step.order is not None:
            return all(0 <= channel < len(step.order) for channel in step.order)
    return True


def _conv_fits_together(step: Conv) -> bool:
    if step.weight.dim() != 4 or 0 in step.weight.shape or step.groups < 1:
        return False
    if min(*step.stride, *step.dilation) < 1 or min(*step.padding, *step.extra_padding) < 0:
        return False
    outputs, inputs = step.weight.shape[0], step.weight.shape[1] * step.groups
    cuts, fits = step.groups, _is_row(step.bias, outputs)
    if step.before is not None:
        fits &= _is_row(step.before.scale, inputs)
    if step.expansion is not None:
        fits &= len(step.expansion.weight) == inputs
    if (gate := step.gate) is not None:
        cuts, hidden, _ = gate.weight1.shape
        fits &= gate.weight1.shape == (cuts, hidden, inputs) and gate.weight2.shape == (cuts, inputs, hidden)
        fits &= gate.bias.shape == (cuts, inputs)
    if (boost := step.boost) is not None:
        fits &= step.groups == 1 and boost.weight.shape == (outputs, inputs)
        fits &= _is_row(boost.bias, outputs) and _is_row(boost.shift, outputs)
    if step.picks is not None:
        cuts = len(step.picks)
        fits &= all(0 <= channel < inputs for picked in step.picks for channel in picked)
        fits &= all(len(picked) <= inputs for picked in step.picks)
    return fits and (step.groups == 1 or cuts == step.groups) and cuts > 0 and outputs % cuts == 0


def _is_row(tensor: Tensor | None, length: int) -> bool:
    return tensor is None or tensor.shape == (length,)


class Packed:
    """Something the kernels point to, and the tensors behind the pointers."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._tensors: list[Tensor] = []

    def _address(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        own = self._empty(tensor.numel())
        own.view(tensor.shape).copy_(tensor.detach())
        return own.data_ptr()

    def _empty(self, floats: int) -> Tensor:
        self._tensors.append(self._memory.empty(floats))
        return self._tensors[-1]


class PackedGate(Packed):
    def __init__(self, gate: GateSpec, memory: Memory | None = None) -> None:
        super().__init__(memory or Memory())
        heads, hidden, channels = gate.weight1.shape
        self.native = structs.Gate(
            channels,
            heads,
            hidden,
            *map(self._address, (gate.weight1, gate.weight2.mT, gate.bias)),
            is_global=gate.threshold is not None,
            keep=gate.keep or 0,
            threshold=gate.threshold or 0.0,
        )


class PackedStep(Packed):
    """A native step that lacks only the places of what it reads and writes."""

    def __init__(self, step: Step, memory: Memory) -> None:
        super().__init__(memory)
        if reason := unsupported(step):
            raise UserError(f"{type(step).__name__} step {step.output!r} cannot be native: {reason}")
        self.native = structs.Step(output_sums=-1, input_sums=-1, gate_memory=-1, input_winners=-1)
        self._packed_gate: PackedGate | None = None
        match step:
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
                self.native.weight, self.native.bias = self._address(step.weight), self._address(step.bias)
            case Pointwise():
                self.native.kind = structs.POINTWISE
                self.native.before = self._norm(step.norm)
                self.native.activation = structs.ACTIVATIONS[step.activation]
                if step.order is not None:
                    order = torch.tensor(step.order, dtype=torch.int32, device="cpu")
                    self.native.order = self._address(order.view(torch.float32))
            case Concat():
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
            self._packed_gate = PackedGate(step.gate, self._memory)
            self.native.gate = self._packed_gate.native
        if step.boost is not None:
            self.native.kind = structs.WINNERS_CONV
            self.native.gate = structs.Gate(
                *(len(step.boost.bias), 1, step.boost.weight.shape[1]),
                weight2=self._address(step.boost.weight.T),
                beta=self._address(step.boost.bias),
                keep=step.boost.keep,
            )

    def _packed_conv(self, step: Conv, before: structs.Norm) -> structs.Conv:
        outputs, inputs, *kernel = step.weight.shape
        conv = structs.Conv(
            inputs * step.groups,
            outputs,
            *(*kernel, *step.stride, *step.padding, *step.dilation),
            groups=len(step.gate.bias) if step.gate else len(step.picks) if step.picks else step.groups,
            dynamic=step.gate is not None or step.picks is not None,
            in_scale=before.scale,
            in_shift=before.shift,
            in_activation=before.activation,
            bias=self._address(step.bias),
            activation=structs.ACTIVATIONS[step.activation],
            interleaved=step.interleaved,
            beta=None if step.boost is None else self._address(step.boost.shift),
        )
        packed = self._empty(library().dgconv_conv_packed_floats(byref(conv)))
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
            weight1, weight2, bias = self._packed_gate._tensors
            first, last = [weight1, bias], [weight2]
        tensors = [*first, *self._tensors, *last]
        return [structs.Region(tensor.data_ptr(), tensor.numel()) for tensor in tensors if tensor.numel() >= 1024]

    def _norm(self, norm: Norm | None) -> structs.Norm:
        if norm is None:
            return structs.Norm()
        return structs.Norm(self._address(norm.scale), self._address(norm.shift), structs.ACTIVATIONS[norm.activation])
