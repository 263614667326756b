"""The page about a tuning: before and after, what each step cost and gained, layers, and the alternatives."""

from pathlib import Path
from typing import Any

from ..files import write_atomically
from ..report.templates import templates_of


def write_report(results: dict[str, Any], file: Path) -> int:
    """One HTML document that needs nothing beside it; the number of its bytes. Names in it are escaped."""
    environment = templates_of("tuning")
    environment.filters |= {"ms": milliseconds, "us": microseconds, "bar": bar}
    template = environment.get_template("page.html")
    page = template.render(results=results, bars=bars(results), threads=threads_of(results))
    content = page.lstrip().encode()
    write_atomically(file, content)
    return len(content)


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:,.0f}"


def bar(seconds: float, longest: float) -> float:
    """Percent of the width."""
    return round(100 * seconds / longest, 2) if longest else 0.0


def bars(results: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for every form that was timed with the first number of threads, the slowest first; missing ones last."""
    rows = results["bench"]["measurements"][0]["rows"]
    timed = sorted((row for row in rows if row["median"]), key=lambda row: -row["median"])
    return [
        {
            "name": name_of(row),
            "precision": row["precision"],
            "seconds": row["median"],
            "ours": row["form"] == "prepared",
            "tuned": row["kind"] == "model",
            "missing": row["missing"],
        }
        for row in [*timed, *(row for row in rows if not row["median"])]
    ]


def name_of(row: dict[str, Any]) -> str:
    network = "tuned" if row["kind"] == "model" else "as it is"
    form = "dgconv" if row["form"] == "prepared" else row["form"]
    return f"{network}, {form}{' int8' if row['precision'] == 'int8' else ''}"


def threads_of(results: dict[str, Any]) -> int:
    return int(results["bench"]["measurements"][0]["threads"])
