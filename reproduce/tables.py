"""The tables of what was counted and measured: each written from ``benchmarks/results``, no figure typed by hand."""

import json
from pathlib import Path
from typing import Any

from dgconv.analysis.paper import compare_with_paper
from dgconv.bench.forms import OURS
from dgconv.bench.runtimes import RUNTIMES
from dgconv.compare import Comparison
from dgconv.compare.table import to_markdown

from .markdown import table as markdown

FORMS = {  # of the training step: how the benchmark calls them, and how the page does
    "authors": "the authors' form, float32",
    "masked copies": "H masked copies, float32",
    "dense": "dense, float32",
    "dense bf16": "dense, bfloat16",
    "ours": "dgconv, float32",
    "ours bf16": "dgconv, bfloat16",
    "ours graph bf16": "dgconv, bfloat16, CUDA graph",
}


def _measured(root: Path, name: str) -> Any:
    return json.loads((root / "benchmarks/results" / f"{name}.json").read_text())


def steps(root: Path) -> str:
    """Each measured training step against the first form of the same run; where that was measured twice, the faster."""
    tables = []
    for name in ("training_step_h200", "training_step_cpu", "training_step_cpu_resnet18"):
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


def any_network(root: Path) -> str:
    """Networks of timm: what is converted and native, and milliseconds; the fastest of the others is marked, in each
    precision."""
    found = _measured(root, "any_network")
    forms = dict.fromkeys(form for row in found["rows"] for form in row["milliseconds"])
    others = [form for form in forms if not form.startswith("ours")]
    rivals = [[form for form in others if form.endswith(" int8") == is_int8] for is_int8 in (False, True)]
    rows = []
    for row in found["rows"]:
        taken, ratios = row["milliseconds"], row["ratios"]
        floats, bytes = (_marked(taken, names) for names in rivals)
        floats += [f"{taken['ours']:.2f}", f"{ratios['float32']:.2f}x", f"{taken['ours, DGC 0.75']:.2f}"]
        if "ours int8" in forms:
            bytes += [f"{taken['ours int8']:.2f}", f"{ratios['int8']:.2f}x"]
        share, converted = min(row["native share"].values()), f"{row['converted']} of {row['convolutions']}"
        rows.append([f"`{row['network']}`", converted, f"{100 * share:.0f} %", *floats, *bytes])
    machine = (
        f"{found['hardware']}, torch {found['torch']}, {found['date']}, {found['size']} px, {found['threads']} thread, "
        "one image, random weights, milliseconds; in float32, where nothing else is said:"
    )
    heading = ["network", "converted", "native", *rivals[0], "dense", "of the fastest", "DGC at 3/4"]
    if "ours int8" in forms:
        heading += [*rivals[1], "dense int8", "of the fastest int8"]
    return f"{machine}\n\n" + markdown(heading, rows)


def _marked(taken: dict[str, float], forms: list[str]) -> list[str]:
    """Milliseconds of these forms, the fastest in italics; nothing for what was not measured."""
    fastest = min(forms, key=lambda form: taken.get(form, float("inf")), default=None)
    return [
        f"{'_' * (form == fastest)}{taken[form]:.2f}{'_' * (form == fastest)}" if form in taken else ""
        for form in forms
    ]


def tuned_networks(root: Path) -> str:
    """Networks of timm through the whole of ``dgconv tune``, as benchmarks/tune_any_network.py did it."""
    if not (root / "benchmarks/results/tune_any_network.json").exists():
        return "Not measured yet."
    found = _measured(root, "tune_any_network")
    done = [row for row in found["rows"] if "error" not in row]
    columns = [
        (precision, form)
        for precision in ("float32", "int8")
        for form in dict.fromkeys(form for row in done for form in row["milliseconds"][precision])
    ]
    rows = []
    for row in found["rows"]:
        seconds = str(row["seconds"])
        if "error" in row:
            why = row["error"].partition(";")[0]  # and not what to do about it
            rows.append([f"`{row['network']}`", "", "", *[""] * len(columns), f"failed: {why}", seconds])
            continue
        taken = [row["milliseconds"][precision].get(form) for precision, form in columns]
        rows.append(
            [
                f"`{row['network']}`", f"{row['converted']} of {row['convolutions']}",
                f"{100 * row['native share']:.0f} %", *("" if ms is None else f"{ms:.2f}" for ms in taken),
                row["verdict"].partition(":")[0].partition(" than")[0], seconds,
            ]
        )  # fmt: skip
    machine = (
        f"{found['hardware']}, torch {found['torch']}, {found['date']}, {found['size']} px, {found['threads']} thread, "
        f"one image, random weights, {found['images'][0]} training images, milliseconds:"
    )
    heading = ["network", "converted", "native", *(f"{form}, {precision}" for precision, form in columns)]
    return f"{machine}\n\n" + markdown([*heading, "verdict", "seconds it took"], rows)


def precision_by_isa(root: Path) -> str:
    """Both precisions with each instruction set, and which of them was taken, as benchmarks/precision_by_isa.py did."""
    if not (root / "benchmarks/results/precision_by_isa.json").exists():
        return "Not measured yet."
    found = _measured(root, "precision_by_isa")
    rows = [
        [
            row["instructions"], row["network"],
            *(f"{row['milliseconds'][precision]:.2f}" for precision in ("float32", "int8")),
            row["chosen"], "right" if row["is_right"] else "wrong",
        ]
        for row in found["rows"]
    ]  # fmt: skip
    machine = f"{found['hardware']}, torch {found['torch']}, {found['date']}, {found['threads']} thread, one image:"
    heading = ["instructions", "network", "float32, ms", "int8, ms", "taken", "is that right"]
    return f"{machine}\n\n" + markdown(heading, rows, left=2)


def tune(root: Path) -> str:
    """What each step of a tuning cost and gained, as ``dgconv tune`` wrote it into results.json."""
    found = _measured(root, "tune_imagenette")
    dense = [row for row in found["bench"]["measurements"][0]["rows"] if row["kind"] == "dense" and row["median"]]
    base = min(row["median"] for row in dense if row["precision"] == "float32")
    rows = []
    for precision in ("float32", "int8"):
        others = [row for row in dense if row["precision"] == precision and row["form"] != OURS]
        best = min(others, key=lambda row: row["median"])
        rows.append([f"the network as it is, in {best['form']}", precision, "", *_taken(best["median"], base)])
    rows += [
        [row["what"], row["precision"], f"{row['error']:.2f} %", *_taken(row["seconds"], base)] for row in found["rows"]
    ]
    sides = "x".join(map(str, found["input_size"]))
    machine = (
        f"ResNet-18, {found['classes']} classes, {sides}, {found['test_images']} test images; "
        f"{found['environment']['hardware']}, one image, {found['goal']['threads'][0]} thread, "
        f"{found['environment']['date']}:"
    )
    return f"{machine}\n\n" + markdown(["step", "precision", "error", "ms", "speed-up"], rows)


def _taken(seconds: float | None, base: float) -> list[str]:
    return ["", ""] if seconds is None else [f"{1e3 * seconds:.2f}", f"{base / seconds:.2f}x"]


def inference(root: Path) -> str:
    """Whole networks, as ``dgconv bench`` measured them: a row for each precision, ratios to its fastest rival."""
    return _inference_of(_benches(root))


def _inference_of(benches: list[dict[str, Any]]) -> str:
    measured = [(bench, measurement) for bench in benches for measurement in bench["measurements"]]
    rivals = dict.fromkeys(
        row["form"] for _, part in measured for row in part["rows"] if row["kind"] == "dense" and row["form"] != OURS
    )
    rows = []
    for bench, part in measured:
        precisions = dict.fromkeys(map(_precision, part["rows"]))
        rows += [_inference_row(bench, part, precision, list(rivals)) for precision in precisions]
    heading = ["network, pruning rate", "precision", "batch", "threads", *rivals, "dense", "SGC", "**DGC**"]
    machines = dict.fromkeys(_machine(bench["machine"]) for bench in benches)
    table = f"{'; '.join(machines)}; milliseconds, median:\n\n" + markdown(heading, rows)
    return table + _unmeasured(rows, {(_precision(row), row["form"]) for _, part in measured for row in part["rows"]})


def speed(root: Path) -> str:
    """The short form of it, one image at a time: DGC in both precisions, each beside the fastest of all rivals."""
    rows = []
    for bench in _benches(root):
        for part in bench["measurements"]:
            if part["batch_size"] == 1:
                row = [f"`{bench['model']}`, {bench['pruning_rate']:.2f}", str(part["threads"])]
                for precision in ("float32", "int8"):
                    row += _beside_the_fastest(part, precision)
                rows.append(row)
    heading = ["network, pruning rate", "threads"]
    for precision in ("float32", "int8"):
        heading += [f"fastest rival, {precision}", "DGC", "times faster"]
    hardware = dict.fromkeys(bench["machine"]["hardware"] for bench in _benches(root))
    return f"Milliseconds for one image, {'; '.join(hardware)}:\n\n" + markdown(heading, rows)


def _beside_the_fastest(part: dict[str, Any], precision: str) -> list[str]:
    rows = [row for row in part["rows"] if _precision(row) == precision and row["median"]]
    rivals = [row for row in rows if row["kind"] == "dense" and row["form"] != OURS]
    ours = next((row["median"] for row in rows if (row["kind"], row["form"]) == ("dgc", OURS)), None)
    if not rivals or not ours:
        return ["", _ms(ours), ""]
    fastest = min(rivals, key=lambda row: row["median"])
    return [f"{_ms(fastest['median'])} {fastest['form']}", _ms(ours), f"**{fastest['median'] / ours:.2f}**"]


def _benches(root: Path, *, in_tiles: bool = False) -> list[dict[str, Any]]:
    """The records of ``dgconv bench`` on CPUs that multiply bytes in tiles, or of all others."""
    found = [json.loads(file.read_text()) for file in sorted((root / "benchmarks/results").glob("bench_*.json"))]
    return [bench for bench in found if bench["machine"].get("native kernels", "").endswith("amx") == in_tiles]


def _unmeasured(rows: list[list[str]], measured: set[tuple[str, str]]) -> str:
    """Names the rivals that records lack: a ratio says nothing about those."""
    shown = {row[1] for row in rows}
    lacking = [
        f"{one.name} in {one.precision}"
        for one in RUNTIMES
        if one.precision in shown and (one.precision, one.name) not in measured
    ]
    return f"\n\nNot among the rivals, for it was not measured: {', '.join(lacking)}." if lacking else ""


def _precision(row: dict[str, Any]) -> str:
    """Records that are older than int8 do not say it."""
    return str(row.get("precision", "float32"))


def _inference_row(bench: dict[str, Any], part: dict[str, Any], precision: str, rivals: list[str]) -> list[str]:
    """Milliseconds in every form; nothing for what was not measured. The fastest rival is in italics."""
    seconds = {
        (row["kind"], row["form"]): row["median"]
        for row in part["rows"]
        if _precision(row) == precision and row["median"]
    }
    dense = {rival: seconds["dense", rival] for rival in rivals if ("dense", rival) in seconds}
    fastest = min(dense, key=lambda rival: dense[rival], default=None)
    ours = {kind: seconds.get((kind, OURS)) for kind in ("dense", "sgc", "dgc")}
    ratio = f", {dense[fastest] / ours['dgc']:.2f}x" if fastest and ours["dgc"] else ""
    mark = {fastest: "_"}
    return [
        f"`{bench['model']}`, {bench['pruning_rate']:.2f}",
        precision,
        str(part["batch_size"]),
        str(part["threads"]),
        *(_ms(dense.get(rival), mark.get(rival, "")) for rival in rivals),
        _ms(ours["dense"]),
        _ms(ours["sgc"]),
        _ms(ours["dgc"], "**") + ratio,
    ]


def _ms(seconds: float | None, mark: str = "") -> str:
    return f"{mark}{1e3 * seconds:.2f}{mark}" if seconds else ""


def _machine(machine: dict[str, Any]) -> str:
    """Hardware, and the version of everything that was installed."""
    names = {one.packages[0]: one.name for one in RUNTIMES}
    packages = {"torch": None} | dict.fromkeys(package for one in RUNTIMES for package in one.packages)
    versions = [f"{names.get(package, package)} {machine[package]}" for package in packages if machine.get(package)]
    return ", ".join([machine["hardware"], *versions, machine["date"]])


def tiles(root: Path) -> str:
    """int8 with the matrix unit of a CPU and without, as benchmarks/tiles.py measured it; and beside all rivals, where
    there are records."""
    found = _measured(root, "tiles")
    rows = [
        [
            f"ResNet-18, {row['network']}", str(row["images"]), str(row["threads"]),
            *(f"{row[isa]:.2f}" for isa in ("avx512_vbmi2", "avx512_amx")),
            f"{row['avx512_vbmi2'] / row['avx512_amx']:.2f}x",
        ]
        for row in found["rows"]
    ]  # fmt: skip
    machine = f"{found['hardware']}, torch {found['torch']}, {found['date']}; {found['differ']} random networks differ"
    heading = ["network", "images", "threads", "vectors, ms", "tiles, ms", "gain"]
    table = f"{machine} from the integer reference:\n\n{markdown(heading, rows)}"
    benches = _benches(root, in_tiles=True)
    return f"{table}\n\n{_inference_of(benches)}" if benches else table


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
        rows.append([row.where, row.label, row.reported, paper, authors, difference, row.fits, f"`{row.recipe}`"])
    heading = ["", "model", "reported", "`paper`", "`authors`", "the closer one differs by", "fits", "recipe"]
    return markdown(heading, rows)


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


def int8(root: Path) -> str:
    """What int8 costs the published networks, and on how many random ones its kernels equal the integer reference, as
    benchmarks/int8_accuracy.py and benchmarks/integer_networks.py measured it."""
    measured, equal = _measured(root, "int8_accuracy"), _measured(root, "integer_networks")
    heading = ["network", "error, float32", "int8", "rise", "same channels", "overlap", "least of a layer", "file"]
    rows = [
        [
            f"`{row['network']}`", f"{row['error float32']:.2f} %", f"{row['error int8']:.2f} %", f"{row['rise']:+.2f}",
            f"{sum(layer['same'] for layer in row['layers']) / len(row['layers']):.1%}", f"{row['overlap']:.4f}",
            f"{min(layer['overlap'] for layer in row['layers']):.4f}", f"{row['file']:.2f}",
        ]
        for row in measured["rows"]
    ]  # fmt: skip
    images, compared = measured["rows"][0]["images"], measured["rows"][0]["compared"]
    mean = sum(row["rise"] for row in measured["rows"]) / len(measured["rows"])
    ran = ", ".join(f"{row['instructions']} {row['networks']}, {row['differ']} differ" for row in equal["rows"])
    return (
        f"{measured['hardware']}, {measured['date']}; errors on {images:,} test images, channels on {compared}; file: "
        f"of the prepared network, against float32. In the mean the error rises by {mean:+.2f} points:\n\n"
        + markdown(heading, rows)
        + f"\n\nRandom networks in int8 against the integer reference, by instruction set: {ran} ({equal['date']})."
    )


def comparisons(root: Path) -> str:
    """A table for each comparison of all methods that there is."""
    files = sorted((root / "benchmarks/results").glob("compare_*.json"))
    return "\n".join(to_markdown(Comparison.from_dict(json.loads(file.read_text()))) for file in files).rstrip()


GPU_FORMS = {
    "sparse": "DGC at 3/4",
    "cudnn": "dense, cuDNN",
    "cudnn graph": "dense, cuDNN, CUDA graph",
    "compiled": "dense, torch.compile max-autotune",
}


def gpu(root: Path) -> str:
    """ResNet-18 on a GPU, sparse beside dense, and why: what each of its convolutions takes and must take."""
    found = _measured(root, "gpu_inference")
    rows = []
    for batch in sorted({network["batch"] for network in found["networks"]}):
        ms = {
            form: ms for network in found["networks"] if network["batch"] == batch for form, ms in network["ms"].items()
        }
        dense = min(ms[form] for form in ms if form != "sparse")
        cells = [f"{ms[form]:.2f}" if form in ms else "–" for form in GPU_FORMS]
        rows.append([str(batch), *cells, f"{dense / ms['sparse']:.2f}x"])
    whole = markdown(["batch", *(f"{title}, ms" for title in GPU_FORMS.values()), "against the best dense"], rows)
    machine = f"{found['machine']}, torch {found['torch']}, bfloat16, 224 pixels, {found['date']}"
    kernels = found["profile"][str(max(network["batch"] for network in found["networks"]))]
    total = sum(us for _, _, us in kernels)
    shares = [
        [f"`{name}`", str(count), f"{us:.0f}", f"{us / total:.0%}"] for name, count, us in kernels if us > 0.01 * total
    ]
    heading = ["kernel, largest batch", "launches", "us", "share"]
    return f"{machine}:\n\n{whole}\n\n{markdown(heading, shares)}"
