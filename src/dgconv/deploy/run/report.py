"""What became of every layer of a model that was prepared."""

from dataclasses import dataclass, field, replace
from typing import Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...text import as_text
from ..calls import name_of
from ..graph import Conv, Graph, Pool, Step, Torch
from .budget import MemoryUse


@dataclass(frozen=True)
class StepReport:
    """One step. ``layers`` are those of the model that it stands for; ``reason`` says why torch runs it."""

    layers: str
    step: str
    runs: Literal["native", "torch"]
    reason: str = ""


@dataclass(frozen=True)
class PreparationReport:
    """Every step of a prepared model, in order. ``print`` it, with or without rich, for a table."""

    rows: tuple[StepReport, ...]
    isa: str
    why_not_native: str | None = None  # of all steps: why there are no native kernels, and what to do
    memory: MemoryUse | None = field(default=None, compare=False)  # of all prepared models of the process

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
        table = Table("layers", "step", "runs", "reason")
        for row in self.rows:
            cells = (row.layers, row.step, row.runs, row.reason)
            table.add_row(*map(Text, cells), style="" if row.runs == "native" else "yellow")
        memory = [Text(f"memory of native calls, at its peak: {self.memory}")] if self.memory and self.native else []
        return Group(table, Text(self.summary), *memory)

    def __str__(self) -> str:
        return as_text(self)


def _are(count: int, of: str = "") -> str:
    return f"{count}{of} {'is' if count == 1 else 'are'}"


def rows_of(graph: Graph, reason: str | None, path: str = "") -> list[StepReport]:
    """A row a step, with the reason if torch runs them; ``path`` is where in the model the graph belongs."""
    prefix = f"{path}: " if path else ""
    return [
        StepReport(prefix + _shortened(step.label), describe(step), "torch" if reason else "native", reason or "")
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


def describe(step: Step) -> str:
    """Describes a step in a few words, with what was joined to it."""
    match step:
        case Conv():
            if step.expansion is not None:
                return f"{describe(step.expansion)}, then {describe(replace(step, expansion=None))}"
            size = "x".join(map(str, step.weight.shape[2:]))
            kind = f"{size} dynamic convolution" if step.gate else f"{size} convolution"
            kind += " of winning outputs" if step.boost else ""
            kind += f", {step.groups} groups" if step.groups > 1 else ""
            kind += f", {len(step.picks)} groups that pick channels" if step.picks and len(step.picks) > 1 else ""
            kind += ", picked channels" if step.picks and len(step.picks) == 1 else ""
            parts = [kind, "norm before" if step.before else "", "addition" if step.residual else ""]
            parts.append(step.activation if step.activation != "identity" else "")
            return ", ".join(part for part in parts if part)
        case Pool():
            return f"{step.kind} pooling"
        case Torch():
            return name_of(step.function)
    return {"GlobalPool": "mean of each plane", "Linear": "linear", "Elementwise": "norm, addition or activation"}.get(
        type(step).__name__, "concatenation"
    )
