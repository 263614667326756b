"""The tables of what was counted and measured: each written from ``benchmarks/results``, no figure typed by hand."""

import json
from pathlib import Path
from typing import Any

from dgconv.analysis.paper import compare_with_paper
from dgconv.compare import Comparison
from dgconv.compare.table import to_markdown

from .markdown import table as markdown

FORMS = {  # of the training step: how the benchmark calls them, and how the page does
    "authors": "the authors' form, float32",
    "masked copies": "H masked copies, float32",
    "ours": "dgconv, float32",
    "ours graph bf16": "dgconv, bfloat16, CUDA graph",
}


def _measured(root: Path, name: str) -> Any:
    return json.loads((root / "benchmarks/results" / f"{name}.json").read_text())


def steps(root: Path) -> str:
    """Each measured training step against the first form of the same run; where that was measured twice, the faster."""
    tables = []
    for name in ("training_step_h200", "training_step_cpu"):
        step = _measured(root, name)
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


def inference(root: Path) -> str:
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
    for file in sorted((root / "benchmarks/results").glob("bench_*.json")):
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


def convolutions(root: Path) -> str:
    """The sixteen 3x3 convolutions of ResNet-18, as benchmarks/cpu_convs.py measured them."""
    measured = _measured(root, "cpu_convs")
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


def norms(root: Path) -> str:
    """Batch norms with statistics taken anew, as benchmarks/norm_statistics.py measured them."""
    measured = _measured(root, "norm_statistics")
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


def comparisons(root: Path) -> str:
    """A table for each comparison of all methods that there is."""
    files = sorted((root / "benchmarks/results").glob("compare_*.json"))
    return "\n".join(to_markdown(Comparison.from_dict(json.loads(file.read_text()))) for file in files).rstrip()
