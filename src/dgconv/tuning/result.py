"""What came out of a tuning: the networks, and the table of what each step cost and gained."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import nn

from ..data import Data
from ..deploy.run.prepared import PreparedModel
from ..text import as_text
from .planning import Plan

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Tuned:
    """What came out. ``print`` it for a table; ``fast`` is what ``deploy.load(folder / "fast")`` gives, too."""

    model: nn.Module
    fast: PreparedModel | None
    plan: Plan
    results: dict[str, Any]
    folder: Path

    def __rich__(self) -> Group:
        return show_results(self.results)

    def __str__(self) -> str:
        return as_text(self)


def native_share(prepared: PreparedModel, data: Data) -> float:
    """The share of a call's time that native steps take."""
    image = next(iter(data.test.batches(1, train=False)))[0]
    split = prepared.time_split(image)
    total = sum(split.values())
    return 1 - split.get("torch", 0.0) / total if total else 0.0


def row_of(what: str, precision: str, error: float, seconds: float | None) -> dict[str, Any]:
    return {"what": what, "precision": precision, "error": error, "seconds": seconds}


def show_results(results: dict[str, Any]) -> Group:
    """The table of what each step cost and gained."""
    threads = results["goal"]["threads"][0]
    table = Table(box=box.SIMPLE_HEAD, title=f"{results['network']} on {results['data']}", title_justify="left")
    table.add_column("step")
    for heading in ("error", f"ms, {threads} thread{'s' * (threads > 1)}", "speed-up"):
        table.add_column(heading, justify="right")
    base = next((row["seconds"] for row in results["rows"] if row["seconds"]), None)
    for row in results["rows"]:
        ms = "" if row["seconds"] is None else f"{1e3 * row['seconds']:.2f}"
        gain = "" if row["seconds"] is None or base is None else f"{base / row['seconds']:.2f}x"
        table.add_row(Text(row["what"]), f"{row['error']:.2f} %", ms, gain)
    return Group(table, Text(results["verdict"]), *[Text(f"note: {note}") for note in results["notes"]])
