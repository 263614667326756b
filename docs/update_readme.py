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
STEP = ("condensenet50", 64)  # model and batch size of the training step that is shown
FORMS = {"authors": "the authors' form", "masked copies": "H masked copies", "ours": "dgconv"}  # ratio: last to first


def markdown(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---"] + ["---:"] * (len(heading) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def results() -> str:
    digits = json.loads((ROOT / "docs/digits.json").read_text())
    step = json.loads((ROOT / "benchmarks/results/training_step_cpu.json").read_text())
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
    forms = {row["form"]: row for row in step["rows"] if (row["model"], row["batch_size"]) == STEP}
    shown = [(label, forms[form]) for form, label in FORMS.items() if form in forms]
    base, ours = shown[0][1], forms["ours"]
    second = markdown(
        [f"training step of `{STEP[0]}_dgc`, batch {STEP[1]}", "time", "peak memory"],
        [
            *([label, f"{1e3 * row['seconds']:.0f} ms", f"{row['bytes'] / 2**20:.0f} MiB"] for label, row in shown),
            ["ratio", f"{ours['seconds'] / base['seconds']:.2f}", f"{ours['bytes'] / base['bytes']:.2f}"],
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
