"""How many inputs the fuzzers tried, and what became of them: from ``tests/fuzz``, where they write it down."""

import json
from collections import Counter
from pathlib import Path

from .markdown import table

RECORD, SOAK = "tests/fuzz/record.json", "tests/fuzz/soak.json"
COLUMNS = {  # of the record, and how the page calls them
    "inputs": "inputs", "refused": "refused", "accepted": "read", "equal": "equal to torch's", "undecided": "undecided",
    "crash": "crashes", "hang": "hangs", "wrong": "wrong", "raw": "raw exceptions", "memory": "too much memory",
}  # fmt: skip
UNDECIDED = """\
Undecided are results too close to a tie between channels, or to what float32 holds, to be called equal or wrong, and
checkpoints of networks that are not built to try them."""
BUILDS = {"stock": "", "sanitized": ", sanitizers"}


def fuzzing(root: Path) -> str:
    """A row for each reader, one more for the sum of each build, and a line about memory."""
    runs = json.loads((root / RECORD).read_text())
    rows = []
    for build, suffix in BUILDS.items():
        of_build = [run for run in runs if run["build"] == build]
        for target in dict.fromkeys(run["target"] for run in of_build):
            rows.append(_row(f"`{target}`{suffix}", [run for run in of_build if run["target"] == target]))
        if of_build:
            rows.append(_row(f"**all{suffix}**", of_build))
    dates = sorted({run["date"] for run in runs})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{when}:\n\n{table(['reader', *COLUMNS.values()], rows)}\n\n{UNDECIDED}{_soak(root)}"


def _row(name: str, runs: list[dict[str, int]]) -> list[str]:
    counts = Counter[str]()
    for run in runs:
        counts.update({column: run.get(column, 0) for column in COLUMNS})
    return [name, *(f"{counts[column]:,}" for column in COLUMNS)]


def _soak(root: Path) -> str:
    if not (root / SOAK).exists():
        return ""
    found = json.loads((root / SOAK).read_text())
    peak, budget, taken = (found[key] / 2**20 for key in ("peak", "budget", "taken"))
    return (
        f"\n\nMemory: {found['threads']} threads made {found['calls']:,} calls with images of {found['sizes']} sizes\n"
        f"in {found['minutes']:g} minutes. {found['wrong']} results were other than those of a single thread. Of a\n"
        f"budget of {budget:.0f} MiB they had {peak:.0f} at most, and the process grew by {taken:.0f} MiB."
    )
