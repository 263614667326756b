"""A graph run by the native kernels: packed once, laid out once for each input shape, then run by one call."""

import itertools
import time
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import UserError
from ...ops import structs
from ..graph import Graph
from .budget import BUDGET
from .channel_order import with_orders
from .layout import Layout
from .memory import PackedMemory, empty, empty_result
from .packing import PackedStep
from .shapes import Shape

CONVOLUTIONS = (structs.CONV, structs.DYNAMIC_CONV, structs.EXPAND, structs.WINNERS_CONV, structs.BYTE_CONV)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step of a call, by what they were spent on: pooling, generator and selection of a dynamic
    convolution, and the computing itself; or torch, where that runs the step."""

    label: str  # the layers of the model that it stands for, joined by " + "; empty for copies, and for the call itself
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

    def __init__(self, graph: Graph, memory: PackedMemory | None = None) -> None:
        self.graph = graph
        memory = memory or PackedMemory()
        self._ordered, orders = with_orders(graph)
        self._packed = [PackedStep(step, memory, orders) for step in self._ordered.steps]
        self._chosen = _Chosen(sum(step.chosen_bytes for step in self._packed))
        self._layouts = _Layouts()
        self._last: tuple[torch.Size | None, Layout | None] = None, None

    def __call__(self, x: Tensor) -> Tensor:
        return self.compute(self._checked(x))

    def compute(self, x: Tensor) -> Tensor:
        """Computes an input that was checked. Does little else: a run leaves cold caches behind, in which Python is
        slow."""
        shape, layout = self._last
        if layout is None or x.shape != shape:
            layout = self._layout(1, *x.shape[1:])
            self._last = x.shape, layout
        if not x.is_contiguous() or x.requires_grad or x.is_neg():  # after it was found that there is room for it
            x = x.detach().contiguous().resolve_neg()
        y = empty_result((len(x), *layout.output_shape))
        self._run(layout, x, y)
        return y

    def timed(self, x: Tensor) -> tuple[Tensor, list[StepTime]]:
        """The result, and where the seconds of the call went; to its end, for which other threads may be waited for."""
        layout = self._layout(1, *self._checked(x).shape[1:])
        x = x.detach().contiguous().resolve_neg()
        y = empty_result((len(x), *layout.output_shape))
        seconds = torch.zeros(len(layout.steps), len(structs.STAGES), dtype=torch.float64, device="cpu")
        begin = time.perf_counter()
        self._run(layout, x, y, seconds)
        call = time.perf_counter() - begin
        times = [
            StepTime(label, step.kind in CONVOLUTIONS, dict(zip(structs.STAGES, row, strict=True)))
            for label, step, row in zip(layout.labels, layout.steps, seconds.tolist(), strict=True)
        ]
        rest = max(0.0, call - sum(step.total for step in times))
        return y, [*times, StepTime("", False, dict.fromkeys(structs.STAGES, 0.0) | {"compute": rest})]

    def _run(self, single: Layout, x: Tensor, y: Tensor, seconds: Tensor | None = None) -> None:
        """A large batch in several goes: what does not fit in the cache takes longer, and much memory."""
        chosen = self._chosen.take()
        if len(x) == 1:
            single.run(x, y, chosen, seconds)
        else:
            for start in range(0, len(x), single.images_at_once):
                part = x[start : start + single.images_at_once]
                self._layout(*part.shape).run(part, y[start:], chosen, seconds)
        self._chosen.give_back(chosen)

    def _layout(self, batch: int, *shape: int) -> Layout:
        if (layout := self._layouts.find(batch, shape)) is None:
            layout = Layout(self._ordered, self._packed, batch, shape)
            self._layouts.add(batch, shape, layout)
        return layout

    def _checked(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32:
            raise UserError(
                f"a prepared network takes float32 tensors on the CPU, got {x.dtype} on {x.device}; "
                "convert the input with .float().cpu()"
            )
        if x.dim() not in (2, 4):
            raise UserError(f"expected an input [batch, channels, height, width], got {list(x.shape)}")
        return x

    def __reduce__(self) -> tuple[type["NativeProgram"], tuple[Graph]]:
        """Copies and pickles pack again: addresses are of no use elsewhere."""
        return NativeProgram, (self.graph,)


class _Chosen:
    """Weights packed for what gates chose, kept from call to call: most images choose as the one before. A call has
    them for itself, and as many are kept as there were calls at once, up to a few."""

    MOST = 4

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[Tensor] = []

    def take(self) -> Tensor | None:
        if not self._size:
            return None
        try:
            return self._free.pop()
        except IndexError:  # others have them all
            return empty(-(-self._size // 4)).zero_()

    def give_back(self, chosen: Tensor | None) -> None:
        if chosen is not None and len(self._free) < self.MOST:
            self._free.append(chosen)


class _Layouts:
    """The layouts of one program by batch and input shape, as long as there is memory for them."""

    def __init__(self) -> None:
        self._number = next(_NUMBERS)
        self._found: dict[tuple[int, Shape], Layout] = {}
        weakref.finalize(self, _forget, self._number, self._found)

    def find(self, batch: int, shape: Shape) -> Layout | None:
        if (layout := self._found.get((batch, shape))) is not None:
            BUDGET.was_used((self._number, batch, shape))
        return layout

    def add(self, batch: int, shape: Shape, layout: Layout) -> None:
        key, found = (batch, shape), self._found
        found[key] = layout
        BUDGET.keep((self._number, *key), layout.bytes, lambda: found.pop(key, None))


_NUMBERS = itertools.count()


def _forget(number: int, found: dict[tuple[int, Shape], Layout]) -> None:
    for key in found:
        BUDGET.forget((number, *key))
    found.clear()
