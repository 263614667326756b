"""What became of every layer of a model that was prepared."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...text import as_text
from ..calls import name_of
from ..graph import BYTE_STEPS, ByteConv, BytePool, Conv, GateSpec, Graph, Linear, Pool, Step, Torch
from .budget import MemoryUse


@dataclass(frozen=True)
class StepReport:
    """One step. ``layers`` are those of the model that it stands for; ``reason`` says why torch runs it."""

    layers: str
    step: str
    runs: Literal["native", "torch"]
    reason: str = ""
    precision: Literal["float32", "int8"] = "float32"


@dataclass(frozen=True)
class PreparationReport:
    """Every step of a prepared model, in order. ``print`` it, with or without rich, for a table."""

    rows: tuple[StepReport, ...]
    isa: str
    why_not_native: str | None = None  # of all steps: why there are no native kernels, and what to do
    memory: MemoryUse | None = field(default=None, compare=False)  # of all prepared models of the process
    kept_share: float | None = None  # of the input channels of dynamic convolutions; None where images decide it
    notes: tuple[str, ...] = ()  # what was decided about the whole

    @property
    def native(self) -> list[StepReport]:
        return [row for row in self.rows if row.runs == "native"]

    @property
    def left(self) -> list[StepReport]:
        """What torch runs."""
        return [row for row in self.rows if row.runs == "torch"]

    @property
    def summary(self) -> str:
        """One line."""
        native = f"{_are(len(self.native), f' of {len(self.rows)} steps')} native ({self.isa})"
        left = f", {_are(len(self.left))} left to torch" if self.left else ""
        return native + left + (f"; {self.why_not_native}" if self.why_not_native else "")

    def __rich__(self) -> Group:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("layers", "step", "runs", "reason")[: 4 if self.left else 3]:
            table.add_column(heading, overflow="fold")
        for row in self.rows:
            runs = f"{row.runs} {row.precision}" if row.precision == "int8" else row.runs
            cells = (row.layers, row.step, runs, row.reason)[: len(table.columns)]
            table.add_row(*map(Text, cells), style="" if row.runs == "native" else "yellow")
        memory = [Text(f"memory of native calls, at its peak: {self.memory}")] if self.memory and self.native else []
        lines = [self.summary, *self.notes]
        if self.kept_share is not None:
            lines.append(f"gates keep {self.kept_share:.1%} of the channels (rate {1 - self.kept_share:.3f})")
        return Group(table, *map(Text, lines), *memory)

    def __str__(self) -> str:
        return as_text(self)


def _are(count: int, of: str = "") -> str:
    return f"{count}{of} {'is' if count == 1 else 'are'}"


def rows_of(graph: Graph, reason: str | None, path: str = "") -> list[StepReport]:
    """A row a step, with the reason if torch runs them; ``path`` is where in the model the graph belongs."""
    prefix = f"{path}: " if path else ""
    return [
        StepReport(
            prefix + _shortened(step.label),
            describe(step),
            "torch" if reason else "native",
            reason or "",
            "int8" if isinstance(step, BYTE_STEPS) else "float32",
        )
        for step in graph.steps
    ]


def _shortened(label: str) -> str:
    """``block.conv + block.norm`` as ``block.conv + norm``."""
    parts = label.split(" + ")
    parents = [part.rpartition(".")[0] for part in parts]
    return " + ".join(
        part.rpartition(".")[2] if number and parents[number] == parents[0] else part
        for number, part in enumerate(parts)
    )


def _kept(gate: GateSpec) -> str:
    """What a gate lets through now."""
    heads, _, channels = gate.weight1.shape
    if gate.keep is None:
        return f"channels of saliency {gate.threshold:.3g} and more"
    fixed = "" if gate.fixed is None else ", the same of every image"
    return f"{gate.keep} of {channels} channels" + (" a head" if heads > 1 else "") + fixed


def kept_share(graphs: Iterable[Graph]) -> float | None:
    """The share of the input channels that gates keep, as far as it is known without images; None without gates."""
    steps = [step for graph in graphs for step in graph.steps if isinstance(step, Conv | ByteConv)]
    gates = [step.gate for step in steps if step.gate]
    gates = [gate for gate in gates if gate.keep is not None]
    kept = sum(len(gate.bias) * (gate.keep or 0) for gate in gates)
    channels = sum(len(gate.bias) * gate.weight1.shape[2] for gate in gates)
    return kept / channels if channels else None


def describe(step: Step) -> str:
    """Describes a step in a few words, with what was joined to it."""
    match step:
        case Conv() | ByteConv():
            if isinstance(step, Conv) and step.expansion is not None:
                return f"{describe(step.expansion)}, then {describe(replace(step, expansion=None))}"
            size = "x".join(map(str, step.weight.shape[2:]))
            kind = f"{size} dynamic convolution of {_kept(step.gate)}" if step.gate else f"{size} convolution"
            kind += " of winning outputs" if getattr(step, "boost", None) else ""
            kind += f", {step.groups} groups" if step.groups > 1 else ""
            kind += f", {len(step.picks)} groups that pick channels" if step.picks and len(step.picks) > 1 else ""
            kind += ", picked channels" if step.picks and len(step.picks) == 1 else ""
            kind += ", gates in the weights" if getattr(step, "folded", False) else ""
            parts = [kind, "norm before" if getattr(step, "before", None) else "", "addition" if step.residual else ""]
            parts.append(step.activation if step.activation != "identity" else "")
            return ", ".join(part for part in parts if part)
        case Pool() | BytePool():
            return f"{step.kind} pooling"
        case Linear():
            return "linear" if step.scale is None else "linear, weights in int8"
        case Torch():
            return name_of(step.function)
    return WORDS[type(step).__name__]


WORDS = {
    "GlobalPool": "mean of each plane",
    "ByteMean": "mean of each plane",
    "Elementwise": "norm, addition or activation",
    "Rescale": "norm, addition or activation",
    "ByteTable": "activation, looked up",
    "Concat": "concatenation",
    "LayerNorm": "norm of each pixel",
    "Resize": "resampling",
    "Pad": "padding",
    "Slice": "some of the channels",
    "Quantize": "floats to bytes",
    "Dequantize": "bytes to floats",
}
