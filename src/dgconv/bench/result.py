"""What a benchmark measured, and the tables of it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..text import as_text, width_of
from .forms import Kind

LABELS: dict[Kind, str] = {"dense": "dense", "sgc": "SGC", "dgc": "DGC", "model": "model"}


@dataclass(frozen=True)
class FormTime:
    """Seconds of one form, median and quartiles, and its speed-up; or why it has none.

    The speed-up is over the fastest dense form; where no dense network was measured, over torch.
    """

    kind: Kind
    form: str
    layout: str = ""
    median: float | None = None
    quartiles: tuple[float, float] | None = None
    speedup: float | None = None
    missing: str = ""

    @property
    def name(self) -> str:
        return f"{LABELS[self.kind]}, {self.form}"


@dataclass(frozen=True)
class Measurement:
    """All forms at one batch size and number of threads. ``split`` says where the time of the last one goes."""

    batch_size: int
    threads: int
    repeats: int
    rows: list[FormTime]
    split: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """``print`` it, with or without rich, for a table for each batch size."""

    model: str
    pruning_rate: float | None  # the mean over the dynamic layers; None if there are none
    input_size: tuple[int, int, int]
    machine: dict[str, Any]
    measurements: list[Measurement]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def tables(self, width: int | None = None) -> Group:
        """All tables, without the warnings. Numbers of threads stand side by side, where the ``width`` is enough for
        them."""
        machine = Text("  ".join(f"{name} {value or 'not installed'}" for name, value in self.machine.items()))
        tables = []
        for batch_size in dict.fromkeys(measurement.batch_size for measurement in self.measurements):
            group = [measurement for measurement in self.measurements if measurement.batch_size == batch_size]
            table = self._table(group)
            fits = width is None or width_of(table) <= width
            tables += [table] if fits else [self._table([measurement]) for measurement in group]
        return Group(machine, *tables, *map(Text, self._notes()))

    def __rich__(self) -> Group:
        return Group(self.tables(), *(Text(f"Warning: {warning}", style="yellow") for warning in self.warnings))

    def __str__(self) -> str:
        return as_text(self)

    def _table(self, group: list[Measurement]) -> RenderableType:
        """The table of one batch size, with a group of columns for each number of threads."""
        rate = "" if self.pruning_rate is None else f", pruning rate {self.pruning_rate:.3g}"
        table = Table(
            title=f"{self.model} at {'x'.join(map(str, self.input_size))}{rate}, batch {group[0].batch_size}",
            box=box.SIMPLE_HEAD,
            title_justify="left",
        )
        table.add_column("network, form", no_wrap=True)
        for measurement in group:
            threads = f"{measurement.threads} thread{'s' * (measurement.threads > 1)}"
            for heading in (f"{threads}\nms", "\nquartiles", "\nspeed-up"):
                table.add_column(heading, justify="right", no_wrap=True)
        for rows in zip(*(measurement.rows for measurement in group), strict=True):
            table.add_row(rows[0].name, *(cell for row in rows for cell in _cells(row)))
        if any(measurement.split for measurement in group):
            table.add_section()
            for part in dict.fromkeys(part for measurement in group for part in measurement.split):
                cells = (cell for measurement in group for cell in _split_cells(measurement, part))
                table.add_row(f"  of {group[0].rows[-1].name}: {part}", *cells)
        return table

    def _notes(self) -> Iterator[str]:
        rows = [row for measurement in self.measurements for row in measurement.rows]
        over = "the fastest dense form" if any(row.kind == "dense" for row in rows) else "torch"
        yield (
            f"Speed-up is over {over}. Medians and quartiles of interleaved repeats, each after a pause and "
            "some untimed calls of the same form."
        )
        if any(row.layout for row in rows):
            yield "torch: the faster of NCHW and NHWC."
        if any(measurement.split for measurement in self.measurements):
            yield f"Parts of {rows[-1].name}, were timed in calls of their own; with their share of the sum."


def _cells(row: FormTime) -> tuple[str, str, str]:
    if row.median is None or row.quartiles is None or row.speedup is None:
        return row.missing, "", ""
    low, high = row.quartiles
    return f"{1e3 * row.median:.2f}", f"{1e3 * low:.2f}-{1e3 * high:.2f}", f"{row.speedup:.2f}x"


def _split_cells(measurement: Measurement, part: str) -> tuple[str, str, str]:
    total = sum(measurement.split.values())
    seconds = measurement.split.get(part, 0.0)
    return f"{1e3 * seconds:.2f}", "", f"{100 * seconds / total:.0f} %" if total else ""
