"""Writes the tables of README.md from what was counted and measured; no figure there is typed by hand.

    python docs/update_readme.py            # rewrite
    python docs/update_readme.py --check    # exit with 1 if the README is not up to date

The digits' result is ``dgconv train --json > docs/digits.json``; measurements are in benchmarks/results.
"""

import json
import re
import sys
from pathlib import Path

from dgconv.analysis.paper import compare_with_paper

ROOT = Path(__file__).resolve().parent.parent


def markdown(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---"] + ["---:"] * (len(heading) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def results() -> str:
    digits = json.loads((ROOT / "docs/digits.json").read_text())
    step = json.loads((ROOT / "benchmarks/results/training_step_cpu.json").read_text())
    ours, copies = step["forms"]["ours"], step["forms"]["masked copies"]
    first = markdown(
        ["digits, 360 test images", "error", "pruning rate", "MACs", "dense MACs"],
        [
            [
                f"`{digits['model']}`",
                f"{digits['error']:.2f} %",
                f"{digits['pruning_rate']:.2f}",
                f"{digits['macs']['paper'] / 1e6:.2f}M",
                f"{digits['dense_macs']['paper'] / 1e6:.2f}M",
            ]
        ],
    )
    second = markdown(
        [f"training step of `{step['model']}_dgc`, batch {step['batch_size']}", "time", "peak memory"],
        [
            ["H masked copies", f"{1e3 * copies['seconds']:.0f} ms", f"{copies['bytes'] / 2**20:.0f} MiB"],
            ["dgconv", f"{1e3 * ours['seconds']:.0f} ms", f"{ours['bytes'] / 2**20:.0f} MiB"],
            ["ratio", f"{ours['seconds'] / copies['seconds']:.2f}", f"{ours['bytes'] / copies['bytes']:.2f}"],
        ],
    )
    machine = f"{step['hardware']}, {step['threads']} threads, float32, torch {step['torch']}, {step['date']}."
    return f"{first}\n\n{second}\n\n{machine}"


def macs() -> str:
    rows = []
    for row in compare_with_paper():
        paper, authors = f"{row.paper:.3f}M", f"{row.authors:.3f}M"
        if row.paper_saving and row.authors_saving:
            paper, authors = f"{paper} = {row.paper_saving:.3f}x", f"{authors} = {row.authors_saving:.3f}x"
        difference = "" if row.difference is None else f"{row.difference:+.2f} %"
        rows.append([row.label, row.reported, paper, authors, difference])
    return markdown(["model", "reported", "`paper`", "`authors`", "the closer one differs by"], rows)


def filled(text: str) -> str:
    for name, table in {"results": results(), "macs": macs()}.items():
        pattern = rf"(<!-- begin: {name} -->\n).*?(<!-- end: {name} -->)"
        text, count = re.subn(pattern, lambda found, t=table: f"{found[1]}\n{t}\n\n{found[2]}", text, flags=re.DOTALL)
        assert count == 1, name
    return text


def main() -> None:
    path = ROOT / "README.md"
    old = path.read_text()
    new = filled(old)
    if "--check" in sys.argv:
        sys.exit("README.md is not up to date; run docs/update_readme.py" if new != old else 0)
    path.write_text(new)


if __name__ == "__main__":
    main()
