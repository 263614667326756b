"""What a comparison found, method by method, and the files it is written to."""

import csv
import io
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files import write_atomically
from .methods import DENSE

JSON, MARKDOWN, CSV, PICTURE = "compare.json", "compare.md", "compare.csv", "compare.png"


@dataclass(frozen=True)
class SeedResult:
    """One trained network, in the form in which it runs. Errors are in percent, MACs those of one image."""

    seed: int
    error: float
    macs: dict[str, float]  # by convention; measured on test images where they depend on the image
    parameters: int
    run: str


@dataclass(frozen=True)
class MethodResult:
    method: str
    title: str
    how_it_runs: str
    options: dict[str, Any]  # that were chosen for the budget
    seeds: list[SeedResult]
    share: float  # of the dense network's MACs, 'paper' convention, mean over the seeds
    note: str  # where the budget was missed, or anything else to know
    latency_ms: float  # of the first seed's network: batch 1, one thread, median
    latency_quartiles_ms: tuple[float, float]
    native_share: float  # of the steps of the prepared network

    @property
    def error(self) -> float:
        return statistics.mean(seed.error for seed in self.seeds)

    @property
    def error_spread(self) -> float | None:
        """Standard deviation over the seeds; None for one."""
        return statistics.stdev(seed.error for seed in self.seeds) if len(self.seeds) > 1 else None

    def macs(self, convention: str) -> float:
        return statistics.mean(seed.macs[convention] for seed in self.seeds)

    @property
    def parameters(self) -> float:
        return statistics.mean(seed.parameters for seed in self.seeds)

    @property
    def error_text(self) -> str:
        return f"{self.error:.2f}" + (f" ± {self.error_spread:.2f}" if self.error_spread is not None else "")


@dataclass(frozen=True)
class Comparison:
    """``settings`` is what was asked for, ``machine`` what the latencies were measured on."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    methods: list[MethodResult]

    def to_dict(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "machine": self.machine,
            "methods": [
                asdict(m)
                | {"error": m.error, "error_spread": m.error_spread, "parameters": m.parameters}
                | {"macs": {convention: m.macs(convention) for convention in m.seeds[0].macs}}
                for m in self.methods
            ],
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Comparison":
        """Reads what ``to_dict`` gave; means and spreads are computed again."""
        methods = []
        for method in values["methods"]:
            fields = {name: method[name] for name in MethodResult.__dataclass_fields__}
            fields["seeds"] = [SeedResult(**seed) for seed in method["seeds"]]
            fields["latency_quartiles_ms"] = tuple(method["latency_quartiles_ms"])
            methods.append(MethodResult(**fields))
        return Comparison(values["settings"], values["machine"], methods)

    @property
    def title(self) -> str:
        s = self.settings
        seeds = f"{len(s['seeds'])} seed{'s' * (len(s['seeds']) > 1)}"
        return f"{s['backbone']} on {s['data']}, budget {s['budget']:g}, {s['epochs']} epochs, {seeds}"

    @property
    def fine_print(self) -> str:
        """Says where the latencies come from."""
        m = self.machine
        return (
            f"Latency: batch 1, 1 thread, median, {m['hardware']}, torch {m['torch']}, "
            f"native kernels {m['native kernels']}, {m['date']}"
        )


HEADINGS = (
    "method", "error, %", "MACs, M ('paper')", "share", "MACs, M ('authors')", "parameters, k", "latency, ms",
    "speed-up", "how it runs", "note",
)  # fmt: skip


def table_rows(comparison: Comparison) -> list[list[str]]:
    """The table as text, a row a method, in the order of ``HEADINGS``. Speed-up is over the dense network, if that is
    there."""
    dense = next((m for m in comparison.methods if m.method == DENSE), None)
    return [
        [
            m.title,
            m.error_text,
            f"{m.macs('paper') / 1e6:.3f}",
            f"{m.share:.3f}",
            f"{m.macs('authors') / 1e6:.3f}",
            f"{m.parameters / 1e3:.1f}",
            f"{m.latency_ms:.3f}",
            f"{dense.latency_ms / m.latency_ms:.2f}x" if dense else "",
            m.how_it_runs,
            m.note,
        ]
        for m in comparison.methods
    ]


def to_markdown(comparison: Comparison) -> str:
    """The table, and under it what the latencies were measured on."""
    lines = [list(HEADINGS), ["---", *["---:"] * 7, "---", "---"], *table_rows(comparison)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"**{comparison.title}**\n\n{table}\n\n{comparison.fine_print}.\n"


def to_csv(comparison: Comparison) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADINGS, *table_rows(comparison)])
    return text.getvalue()


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """All files but the picture."""
    files = {
        JSON: json.dumps(comparison.to_dict(), indent=2) + "\n",
        MARKDOWN: to_markdown(comparison),
        CSV: to_csv(comparison),
    }
    for name, text in files.items():
        write_atomically(folder / name, text.encode())
