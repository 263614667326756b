"""A model that was prepared: runs its graph, in native code where it can."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ...ops import native
from ...ops.layout import is_channels_last
from ...ops.transforms import transforming
from ..calls import overwriting
from ..graph import ByteConv, Concat, Conv, Elementwise, Graph, Pool, Step, Torch, byte_values, tensors_of, values_read
from . import bounds, torch_steps
from .budget import BUDGET
from .choice import in_branches, laid_out_like, slower, stays_channels_last
from .memory import PackedMemory
from .packing import unsupported
from .program import NativeProgram, StepTime
from .report import PreparationReport, kept_share, rows_of
from .segments import Segment, segments
from .shapes import input_channels

MOST_BOUNDED = 1024  # sizes of images that are remembered


class PreparedModel(nn.Module):
    """What :func:`~dgconv.deploy.prepare` makes of a model: the same function of an image, for the CPU, in float32.

    It has no parameters and does not train. Several Python threads may call it at once.

    Where the layers of the original raise an error for images with NaN or infinite values, this one does not look:
    such an image gets a result of no use, a NaN ranking last among the saliencies. Other images of the batch are as
    good as ever.
    """

    why_not_counted = "a prepared model has no layers left to count; count the model that it was prepared from"

    def __init__(
        self,
        graph: Graph,
        inner: list[tuple[str, "PreparedModel"]] | None = None,
        *,
        is_foreign: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.graph, self.inner = graph, inner or []  # inner: prepared parts of what is left to Python, and their paths
        self.notes = notes  # what was decided on the way
        self.is_foreign = is_foreign  # out of a file: what it needs is bounded before it runs
        self.training = False
        self.channels = _input_channels(graph)
        self._make_runs()

    @property
    def bytes_between_programs(self) -> set[str]:
        """Values in bytes that one program would hand to another; they know their order of channels within one only."""
        return {name for run in self._runs for name in run.segment.reads} & byte_values(self.graph)

    def _make_runs(self) -> None:
        self._runs = list(_runs(self.graph))
        is_one = len(self._runs) == 1 and self._runs[0].segment.graph.output == self.graph.output
        self._whole = self._runs[0].program if is_one else None
        self._is_native = any(run.program for run in self._runs)
        self._checked_shape: torch.Size | None = None
        self._bounded: set[torch.Size] = set()  # images that a foreign graph is known to have room for

    def forward(self, x: Tensor) -> Any:
        is_plain = type(x) is Tensor and x.is_cpu and x.dtype is torch.float32 and x.layout is torch.strided
        is_plain = is_plain and not x.is_nested
        if not (is_plain and not _is_watched() and x.shape == self._checked_shape):
            self._check(x)
            self._checked_shape = x.shape  # asked once: what a run leaves in the caches makes questions slow
        if self._whole is not None:
            return self._whole.compute(x)
        return self._walk(x, lambda run, values: run(values))

    @property
    def precision(self) -> str:
        """ "int8" if any of its convolutions is, else "float32"."""
        return "int8" if any(isinstance(step, ByteConv) for step in self.graph.steps) else "float32"

    def time_by_step(self, x: Tensor) -> list[StepTime]:
        """Where the seconds of one call go, step by step."""
        self._check(x)
        times: list[StepTime] = []

        def measure(run: "_Run", values: dict[str, Any]) -> Any:
            x = values[run.segment.graph.input]
            if (program := run.program_for(x)) is not None:
                result, steps = program.timed(x)
                times.extend(steps)
                return laid_out_like(x, result)
            start = time.perf_counter()
            result = run(values)
            times.append(StepTime(run.segment.graph.steps[0].label, False, {"torch": time.perf_counter() - start}))
            return result

        self._walk(x, measure)
        return times

    def time_split(self, x: Tensor) -> dict[str, float]:
        """Where the seconds of one call go: pooling, generators and selections of the dynamic convolutions, all
        convolutions, everything else, and torch where it runs a step."""
        split: dict[str, float] = {}
        for step in self.time_by_step(x):
            for stage, seconds in step.stages.items():
                part = stage if stage != "compute" else "convolution" if step.is_convolution else "other"
                split[part] = split.get(part, 0.0) + seconds
        return split

    def report(self) -> PreparationReport:
        """What is native, what was joined, what is left to torch and why, and how much memory calls took at most.

        A native step that stands alone is left to torch, too, for planes whose channels lie together in memory.
        """
        rows = [row for run in self._runs for row in rows_of(run.segment.graph, run.segment.reason)]
        for path, model in self.inner:
            rows += [row for run in model._runs for row in rows_of(run.segment.graph, run.segment.reason, path)]
        share = kept_share([self.graph, *(model.graph for _, model in self.inner)])
        return PreparationReport(tuple(rows), native.isa(), native.why_not(), BUDGET.use, share, self.notes)

    def fits(self, x: Any) -> bool:
        """Whether the model takes this input."""
        return self._problem(x) is None

    def train(self, mode: bool = True) -> "PreparedModel":
        if mode:
            raise UserError("a prepared model does not train; train the original, and prepare it again")
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PreparedModel":
        """What ``half()``, ``cuda()`` and ``to()`` do to each tensor; the packed ones would not follow."""
        try:
            example = fn(torch.zeros(1))
        except (RuntimeError, AssertionError) as error:  # there is no such device
            raise UserError(f"a prepared model stays on the CPU, in float32: {error}") from None
        if example.device.type != "cpu" or example.dtype != torch.float32:
            raise UserError(
                f"a prepared model stays on the CPU, in float32; it cannot become {example.dtype} on {example.device}. "
                "Use the original model there"
            )
        return self

    def extra_repr(self) -> str:
        return self.report().summary

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave out what is packed for this machine."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_runs", "_whole")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._make_runs()

    def _walk(self, x: Tensor, call: Callable[["_Run", dict[str, Any]], Any]) -> Any:
        x = x.detach() if x.requires_grad else x
        if self._is_native and is_channels_last(x):
            x = x.contiguous()  # once: as it is, what torch's steps make of it would be copied for each program
        values: dict[str, Any] = {self.graph.input: x}
        autocast = torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()
        with torch.no_grad(), autocast:  # for torch's steps; once, for they take time
            for run in self._runs:
                try:
                    values[run.segment.graph.output] = call(run, values)
                except Exception as error:
                    if self.is_foreign and not isinstance(error, UserError):  # else it is the model's own
                        raise UserError(f"{run.segment.graph.output!r} cannot be computed: {error}") from None
                    raise
                for name in run.releases:
                    del values[name]
        return values[self.graph.output]

    def _check(self, x: Any) -> None:
        if problem := self._problem(x):
            raise UserError(problem)
        if self.is_foreign and x.shape not in self._bounded:
            bounds.check(((run.segment.graph, run.releases) for run in self._runs), self.graph.input, x)
            if len(self._bounded) >= MOST_BOUNDED:
                self._bounded.clear()
            self._bounded.add(x.shape)

    def _problem(self, x: Any) -> str | None:
        """What is wrong with an input."""
        if not isinstance(x, Tensor):
            return f"expected a tensor, got a {type(x).__name__}"
        if x.device.type != "cpu":
            return f"prepared models run on the CPU only, got an input on {x.device}; use .cpu(), or the original model"
        if x.dtype != torch.float32:
            return f"prepared models are float32, got an input of {x.dtype}; use .float()"
        if x.layout != torch.strided or x.is_nested:
            return f"prepared models take plain tensors, got one whose layout is {x.layout}; use .to_dense()"
        if self._is_native and (_is_watched() or x.untyped_storage().device.type != "cpu"):  # a fake tensor
            return (
                "a prepared model runs native code, which torch cannot trace, simulate or transform; "
                "use the original model"
            )
        if x.dim() > 1 and len(x) and not x.numel():
            return f"there is nothing in these images: got {list(x.shape)}"
        if self.graph.size is not None and (x.dim() != 4 or x.shape[2:] != self.graph.size):
            height, width = self.graph.size
            return (
                f"this model was prepared for images of {height} x {width} pixels, for its code depends on their size; "
                f"got {list(x.shape)}. Prepare the original model again, with an example of that size"
            )
        if self.channels is not None and (x.dim() != 4 or x.shape[1] != self.channels):
            hint = "; add the batch dimension with x[None]" if x.dim() == 3 else ""
            return f"expected an input [batch, {self.channels}, height, width], got {list(x.shape)}{hint}"
        return None


def _is_watched() -> bool:
    """Whether torch takes down the operations, or transforms them: native code has none."""
    return torch.jit.is_tracing() or transforming()


@dataclass
class _Run:
    """A segment, ready to run: as a native program, or with torch."""

    segment: Segment
    program: NativeProgram | None
    releases: list[str]  # values nobody reads afterwards
    stays_channels_last: bool  # it is torch that runs it on such an input

    def __call__(self, values: dict[str, Any]) -> Any:
        x = values[self.segment.graph.input]
        if (program := self.program_for(x)) is not None:
            return laid_out_like(x, program(x))
        (step,) = self.segment.graph.steps
        return torch_steps.run_step(step, values)

    def program_for(self, x: Any) -> NativeProgram | None:
        return None if self.stays_channels_last and is_channels_last(x) else self.program


def _runs(graph: Graph) -> Iterator[_Run]:
    answers: dict[int, tuple[Step, str | None]] = {}  # with the step, so that no other takes its number
    branches = in_branches(graph)

    def why_not(step: Step) -> str | None:
        if id(step) not in answers:
            reason = unsupported(step) or slower(step, step.output in branches)
            reason = reason if native.available() else "no native kernels"
            answers[id(step)] = step, reason
        return answers[id(step)][1]

    parts = list(_overwriting(segments(graph, why_not), graph.output))
    last_reads = {name: part for part in parts for name in part.reads}
    memory = PackedMemory(sum(tensor.numel() for tensor in tensors_of(graph)))  # one for all, for huge pages are huge
    for part in parts:
        program = None if part.reason else NativeProgram(part.graph, memory)
        releases = [n for n in part.reads if last_reads[n] is part and n != graph.output]
        yield _Run(part, program, releases, program is not None and stays_channels_last(part.graph.steps))


def _overwriting(parts: list[Segment], output: str) -> Iterator[Segment]:
    """An activation that is left to torch writes over the result of a native convolution that nobody else reads: for
    fresh memory the system finds and clears page after page, which takes longer than the activation."""
    reads = Counter([output, *(name for part in parts for step in part.graph.steps for name in values_read(step))])
    convolved = {part.graph.output for part in parts if not part.reason and isinstance(part.graph.steps[-1], Conv)}
    for part in parts:
        step = part.graph.steps[0]
        if isinstance(step, Torch) and all(name in convolved and reads[name] == 1 for name in step.inputs):
            step = replace(step, function=overwriting(step.function))
            part = replace(part, graph=replace(part.graph, steps=[step]))
        yield part


def _input_channels(graph: Graph) -> int | None:
    """Channels of the image, as far as the steps that read it tell; None if torch reads it first."""
    same = {graph.input}  # values that have the channels of the image
    for step in graph.steps:
        if isinstance(step, Torch | Concat) or step.input not in same:
            continue
        if (channels := input_channels(step)) is not None:
            return channels
        if isinstance(step, Pool | Elementwise):
            same.add(step.output)
    return None
