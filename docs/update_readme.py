"""Writes the tables of README.md and docs from what was counted and measured; no figure is typed by hand.

    python docs/update_readme.py            # rewrite
    python docs/update_readme.py --check    # exit with 1 if one of them is not up to date

Measurements are in benchmarks/results. The results of training are in results, and ``dgconv results`` writes them too.
"""

import json
import sys
from pathlib import Path

from dgconv.analysis.paper import compare_with_paper
from dgconv.results.checkout import Checkout
from dgconv.results.markdown import fill_section
from dgconv.results.markdown import table as markdown
from dgconv.results.page import readme_table

ROOT = Path(__file__).resolve().parent.parent
FORMS = {  # of the training step: how the benchmark calls them, and how the README does
    "authors": "the authors' form, float32",
    "masked copies": "H masked copies, float32",
    "ours": "dgconv, float32",
    "ours graph bf16": "dgconv, bfloat16, CUDA graph",
}


def results() -> str:
    """Every finished run of a recipe."""
    return readme_table(Checkout(ROOT).groups)


def steps() -> str:
    """Each measured training step against the first form of the same run; where that was measured twice, the faster."""
    tables = []
    for name in ("training_step_h200", "training_step_cpu"):
        step = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text())
        rows = []
        for case in dict.fromkeys((row["model"], row["batch_size"]) for row in step["rows"]):
            forms = {row["form"]: row for row in step["rows"] if (row["model"], row["batch_size"]) == case}
            shown = [(label, forms[form]) for form, label in FORMS.items() if form in forms]
            first = next(form for form in FORMS if form in forms)
            base = min((row for form, row in forms.items() if form.startswith(first)), key=lambda row: row["seconds"])
            rows += [
                [
                    f"`{case[0]}_dgc`, batch {case[1]}",
                    label,
                    f"{1e3 * row['seconds']:.1f} ms",
                    f"{base['seconds'] / row['seconds']:.2f}x",
                    f"{row['bytes'] / 2**20:.0f} MiB",
                    f"{row['bytes'] / base['bytes']:.2f}",
                ]
                for label, row in shown
            ]
        machine = f"{step['hardware']}, {step['threads']} threads, torch {step['torch']}, {step['date']}:"
        tables.append(f"{machine}\n\n" + markdown(["network", "form", "step", "faster", "peak memory", "ratio"], rows))
    return "\n\n".join(tables)


def inference() -> str:
    """Whole networks, as ``dgconv bench`` measured them."""
    heading = [
        "network, pruning rate",
        "batch",
        "threads",
        "torch",
        "ONNX Runtime",
        "OpenVINO",
        "dense",
        "SGC",
        "**DGC**",
    ]
    rows, machine = [], {}
    for file in sorted((ROOT / "benchmarks/results").glob("bench_*.json")):
        bench = json.loads(file.read_text())
        machine = bench["machine"]
        for measured in bench["measurements"]:
            forms = {(row["kind"], row["form"]): row["median"] for row in measured["rows"]}
            runtimes = [forms["dense", "ONNX Runtime"], forms["dense", "OpenVINO"]]
            best = min(seconds for seconds in runtimes if seconds)
            shown = [forms["dense", "torch"], *runtimes, forms["dense", "prepared"], forms["sgc", "prepared"]]
            dgc = forms["dgc", "prepared"]
            rows.append(
                [
                    f"`{bench['model']}`, {bench['pruning_rate']:.2f}",
                    str(measured["batch_size"]),
                    str(measured["threads"]),
                    *(f"{1e3 * seconds:.2f}" if seconds else "" for seconds in shown),
                    f"**{1e3 * dgc:.2f}**, {best / dgc:.2f}x",
                ]
            )
    header = "{hardware}, torch {torch}, ONNX Runtime {onnxruntime}, OpenVINO {openvino}, {date}".format(**machine)
    return f"{header}; milliseconds, median:\n\n" + markdown(heading, rows)


def convolutions() -> str:
    """The sixteen 3x3 convolutions of ResNet-18, as benchmarks/cpu_convs.py measured them."""
    measured = json.loads((ROOT / "benchmarks/results/cpu_convs.json").read_text())
    totals = [row for row in measured["rows"] if row["layers"] == "all"]
    rates = [name for name in totals[0] if name.startswith("DGC ")]
    torchs = {"dense, torch": "dense", "SGC, torch": "SGC"}
    others = torchs | {"dense, ours": "dense prepared", "SGC, ours": "SGC prepared"}
    heading = ["threads", *others, *(f"DGC, ξ = {name.split()[1]}" for name in rates)]
    rows = [
        [
            str(row["threads"]),
            *(f"{1e3 * row[name]:.1f} ms" for name in others.values()),
            *(f"{1e3 * row[name]:.1f} ms, {row['dense'] / row[name]:.2f}x" for name in rates),
        ]
        for row in totals
    ]
    header = "{hardware}, {instructions}, torch {torch}, {date}, medians of {repeats}:".format(**measured)
    return f"{header}\n\n" + markdown(heading, rows)


def macs() -> str:
    rows = []
    for row in compare_with_paper():
        paper, authors = f"{row.paper:.3f}M", f"{row.authors:.3f}M"
        if row.paper_saving and row.authors_saving:
            paper, authors = f"{paper} = {row.paper_saving:.3f}x", f"{authors} = {row.authors_saving:.3f}x"
        difference = "" if row.difference is None else f"{row.difference:+.2f} %"
        rows.append([row.label, row.reported, paper, authors, difference])
    return markdown(["model", "reported", "`paper`", "`authors`", "the closer one differs by"], rows)


def norms() -> str:
    """Batch norms with statistics taken anew, as benchmarks/norm_statistics.py measured them."""
    measured = json.loads((ROOT / "benchmarks/results/norm_statistics.json").read_text())
    heading = ["recipe", "seed", "images", "error", "with new statistics", "loss", "with new statistics"]
    rows = [
        [
            f"`{row['name']}`", str(row["seed"]), str(row["images"]), f"{row['error']:.2f} %",
            f"{row['error_anew']:.2f} %", f"{row['loss']:.4f}", f"{row['loss_anew']:.4f}",
        ]
        for row in measured["rows"]
    ]  # fmt: skip
    header = "{hardware}, torch {torch}, float32, {date}:".format(**measured)
    return f"{header}\n\n" + markdown(heading, rows)


PAGES = {
    "README.md": (results, inference),
    "docs/costs.md": (convolutions, steps, macs),
    "docs/reproduction.md": (norms,),
}


def main() -> None:
    for name, sections in PAGES.items():
        path = ROOT / name
        new = old = path.read_text()
        for section in sections:
            new = fill_section(new, section.__name__, section())
        if new != old and "--check" in sys.argv:
            sys.exit(f"{name} is not up to date; run docs/update_readme.py")
        path.write_text(new)


if __name__ == "__main__":
    main()
