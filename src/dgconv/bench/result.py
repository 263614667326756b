"""What a benchmark measured, and the tables of it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..deploy.precision import Precision
from ..text import as_text, text_width, width_of
from .forms import AGREE, Kind, title_of


@dataclass(frozen=True)
class FormTime:
    """Seconds of one form, median and quartiles, and its speed-up; or why it has none.

    The speed-up is over the fastest rival of the same precision, the dense network as a user would run it without us;
    where no dense network was measured, over torch.
    """

    kind: Kind
    form: str
    layout: str = ""
    median: float | None = None
    quartiles: tuple[float, float] | None = None
    speedup: float | None = None
    missing: str = ""
    precision: Precision = "float32"
    difference: float | None = None  # from torch's result in float32, in units of the largest logit

    @property
    def name(self) -> str:
        return title_of(self.kind, self.form, self.precision)


@dataclass(frozen=True)
class Measurement:
    """All forms at one batch size and number of threads. ``split`` says where the time of the last one goes."""

    batch_size: int
    threads: int
    repeats: int
    rows: list[FormTime]
    split: dict[str, float] = field(default_factory=dict)
    fastest_rival: dict[Precision, str] = field(default_factory=dict)  # by precision, the form that ratios are to

    @property
    def place(self) -> str:
        return f"batch {self.batch_size}, {_count(self.threads)}"


@dataclass(frozen=True)
class Bench:
    """``print`` it, with or without rich, for a table for each batch size."""

    model: str
    pruning_rate: float | None  # what gates left out of the channels of these images; None if there are no gates
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
        return Group(
            self.tables(text_width()), *(Text(f"Warning: {warning}", style="yellow") for warning in self.warnings)
        )

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
            for heading in (f"{_count(measurement.threads)}\nms", "\nquartiles", "\nspeed-up"):
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
        yield from self._baselines()
        yield (
            "Medians and quartiles of interleaved repeats, each after a pause and some untimed calls of the same form."
        )
        for reason in dict.fromkeys(row.missing for row in rows if row.missing):
            names = dict.fromkeys(row.name for row in rows if row.missing == reason)
            yield f"Missing: {'; '.join(names)}: {reason}."
        if off := _differences([row for row in rows if row.precision == "int8"]):
            yield f"Logits differ from torch's in float32 by {off} of the largest; {AGREE['int8']} is allowed."
        if any(row.layout for row in rows):
            yield "torch: the faster of NCHW and NHWC."
        if any(measurement.split for measurement in self.measurements):
            yield f"Parts of {rows[-1].name}, were timed in calls of their own; with their share of the sum."

    def _baselines(self) -> Iterator[str]:
        """What ratios are to, in each precision."""
        if not any(row.kind == "dense" for measurement in self.measurements for row in measurement.rows):
            yield "Speed-up is over torch."
            return
        for precision in dict.fromkeys(row.precision for row in self.measurements[0].rows):
            places: dict[str, list[str]] = {}
            for measurement in self.measurements:
                places.setdefault(measurement.fastest_rival.get(precision, "none"), []).append(measurement.place)
            told = [name if len(places) == 1 else f"{name} ({'; '.join(where)})" for name, where in places.items()]
            yield f"Speed-up in {precision} is over the fastest rival with the dense network: {', '.join(told)}."


def _differences(rows: list[FormTime]) -> str:
    """The greatest of each form, in words."""
    worst: dict[str, float] = {}
    for row in rows:
        if row.difference is not None:
            worst[row.name] = max(worst.get(row.name, 0.0), row.difference)
    return ", ".join(f"{value:.2g} ({name})" for name, value in worst.items())


def _count(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def _cells(row: FormTime) -> tuple[str, str, str]:
    if row.median is None or row.quartiles is None:
        return "missing", "", ""
    low, high = row.quartiles
    return f"{1e3 * row.median:.2f}", f"{1e3 * low:.2f}-{1e3 * high:.2f}", times(row.speedup)


def times(speedup: float | None) -> str:
    """A ratio; nothing where there is nothing to compare with."""
    return "" if speedup is None else f"{speedup:.2f}x"


def _split_cells(measurement: Measurement, part: str) -> tuple[str, str, str]:
    total = sum(measurement.split.values())
    seconds = measurement.split.get(part, 0.0)
    return f"{1e3 * seconds:.2f}", "", f"{100 * seconds / total:.0f} %" if total else ""
