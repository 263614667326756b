"""What the kernels point to, and the tensors behind the pointers."""

import torch
from torch import Tensor

from ...errors import UserError
from ...ops import structs
from ..graph import GateSpec
from .memory import PackedMemory


def sound_size(size: int, name: str) -> int:
    """A size that the kernels told, who answer -1 to numbers with which none of theirs would be safe."""
    if size < 0:
        raise UserError(f"the native kernels refuse the sizes of the step {name!r}; use smaller images or layers")
    return size


class Packed:
    """Something the kernels point to, and the tensors behind the pointers."""

    def __init__(self, memory: PackedMemory) -> None:
        self._memory = memory
        self._tensors: list[Tensor] = []

    def address(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        own = self._empty(tensor.numel())
        own.view(tensor.shape).copy_(tensor.detach())
        return own.data_ptr()

    def integers(self, tensor: Tensor | None) -> int | None:
        return None if tensor is None else self.address(tensor.int().contiguous().view(torch.float32))

    def copy_bytes(self, tensor: Tensor) -> int:
        own = self.bytes(tensor.numel())
        own.view(torch.int8)[: tensor.numel()].view(tensor.shape).copy_(tensor)
        return own.data_ptr()

    def bytes(self, count: int) -> Tensor:
        return self._empty(-(-count // 4)).view(torch.uint8)

    def _empty(self, floats: int) -> Tensor:
        self._tensors.append(self._memory.empty(floats))
        return self._tensors[-1]


class PackedGate(Packed):
    def __init__(self, gate: GateSpec, memory: PackedMemory | None = None) -> None:
        super().__init__(memory or PackedMemory())
        heads, hidden, channels = gate.weight1.shape
        weights: tuple[int | None, ...] = (None, None)
        self.generator = structs.ByteGenerator()  # of weights that are bytes
        if gate.scale is None:
            weights = self.address(gate.weight1), self.address(gate.weight2.mT)
        else:
            bytes = self.copy_bytes(gate.weight1), self.copy_bytes(gate.weight2.mT)
            self.generator = structs.ByteGenerator(*bytes, self.address(gate.scale))
        self.native = structs.Gate(
            channels,
            heads,
            hidden,
            *weights,
            self.address(gate.bias),
            is_global=gate.threshold is not None,
            keep=gate.keep or 0,
            threshold=gate.threshold or 0.0,
            fixed=None if gate.fixed is None else self.integers(torch.tensor(gate.fixed, device="cpu")),
        )


class NativeStep(Packed):
    """A native step that is being filled in."""

    def __init__(self, memory: PackedMemory) -> None:
        super().__init__(memory)
        self.native = structs.Step(output_sums=-1, input_sums=-1, gate_memory=-1, input_winners=-1)
        self._packed_gate: PackedGate | None = None

    def pack_gate(self, gate: GateSpec) -> None:
        self._packed_gate = PackedGate(gate, self._memory)
        self.native.bytes.generator = self._packed_gate.generator
        self.native.gate = self._packed_gate.native
