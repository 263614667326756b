"""A graph run by the native kernels: packed once, laid out once for each input shape, then run by one call."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..errors import UserError
from ..ops import structs
from .graph import Graph
from .memory import Memory, empty_result
from .packing import PackedStep
from .plan import Plan

MAX_PLANS = 16  # input shapes that a program remembers
CONVOLUTIONS = (structs.CONV, structs.DYNAMIC_CONV, structs.EXPAND, structs.WINNERS_CONV)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step of a call, by what they were spent on: pooling, generator and selection of a dynamic
    convolution, and the computing itself; or torch, where that runs the step."""

    label: str  # the layers of the model that it stands for, joined by " + "; empty for a copy
    is_convolution: bool
    stages: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.stages.values())


class NativeProgram:
    """Computes what a graph of native steps says, in float32: ``[B, C, height, width]``, or rows, to its output.

    Safe to call from many Python threads at once. The result is the same for any number of threads. NaN and infinite
    values raise nothing: a NaN ranks last in the choice of channels.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        memory = Memory()
        packed = [PackedStep(step, memory) for step in graph.steps]
        # Without self, which would then be freed by the garbage collector only, and with it all of the memory.
        self._plan = lru_cache(MAX_PLANS)(lambda batch, *shape: Plan(graph, packed, batch, shape))
        self._last: tuple[torch.Size | None, Plan | None] = None, None

    def __call__(self, x: Tensor) -> Tensor:
        return self.compute(self._checked(x))

    def compute(self, x: Tensor) -> Tensor:
        """Of an input that was checked. Does little: a run leaves cold caches behind, in which Python is slow."""
        if not x.is_contiguous() or x.requires_grad or x.is_neg():
            x = x.detach().contiguous().resolve_neg()
        shape, plan = self._last
        if plan is None or x.shape != shape:
            plan = self._plan(1, *x.shape[1:])
            self._last = x.shape, plan
        y = empty_result((len(x), *plan.output_shape))
        self._run(plan, x, y)
        return y

    def timed(self, x: Tensor) -> tuple[Tensor, list[StepTime]]:
        """The result, and where the seconds of the call went."""
        x = self._checked(x)
        plan = self._plan(1, *x.shape[1:])
        y = empty_result((len(x), *plan.output_shape))
        seconds = torch.zeros(len(plan.steps), len(structs.STAGES), dtype=torch.float64, device="cpu")
        self._run(plan, x, y, seconds)
        return y, [
            StepTime(label, step.kind in CONVOLUTIONS, dict(zip(structs.STAGES, row, strict=True)))
            for label, step, row in zip(plan.labels, plan.steps, seconds.tolist(), strict=True)
        ]

    def _run(self, single: Plan, x: Tensor, y: Tensor, seconds: Tensor | None = None) -> None:
        """A large batch in several goes: what does not fit in the cache takes longer, and much memory."""
        if len(x) == 1:
            return single.run(x, y, seconds)
        for start in range(0, len(x), single.images_at_once):
            part = x[start : start + single.images_at_once]
            self._plan(*part.shape).run(part, y[start:], seconds)

    def _checked(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32:
            raise UserError(
                f"a prepared network takes float32 tensors on the CPU, got {x.dtype} on {x.device}; "
                "convert the input with .float().cpu()"
            )
        if x.dim() not in (2, 4):
            raise UserError(f"expected an input [batch, channels, height, width], got {list(x.shape)}")
        return x.detach().contiguous().resolve_neg()

    def __reduce__(self) -> tuple[type["NativeProgram"], tuple[Graph]]:
        """Copies and pickles pack again: addresses are of no use elsewhere."""
        return NativeProgram, (self.graph,)
