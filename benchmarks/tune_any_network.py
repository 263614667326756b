"""Networks of timm with random weights through the whole of ``dgconv tune``: what it decides, and if that is right.

    python benchmarks/tune_any_network.py DATA_DIR [--data parquet] [--networks resnet50 ...] [--size 224] [--json FILE]

A few photos of the data set are enough: errors of random weights say nothing, so the error may rise as it likes, and
time alone decides. The weights are for as many classes as their authors', and get a new last layer, as those of a user
would. Each network has a process of its own; those that are in the work folder are not done again.
"""

import argparse
import io
import json
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from any_network import NETWORKS, network
from PIL import Image
from rich.console import Console
from rich.table import Table

from dgconv import deploy
from dgconv.bench.forms import OURS
from dgconv.bench.timing import describe_machine
from dgconv.data import load_data
from dgconv.data.decode import Encoded
from dgconv.deploy.export.outputs import difference
from dgconv.models import load_model
from dgconv.runs.tensors import to_bytes

IMAGES = {"train": 128, "test": 64}
ANY_DROP = 100.0  # points
PRECISIONS = ("float32", "int8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--data", default="parquet", help="how the photos lie there: parquet or folder")
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, nargs=2, default=tuple(IMAGES.values()), help="to train and to test on")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--time", type=float, default=10.0, help="minutes a network may take, as tune takes it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("build/tune_any_network"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    photos = arguments.work / "photos"
    if not photos.exists():
        write_photos(arguments.data, arguments.data_dir, photos, dict(zip(IMAGES, arguments.images, strict=True)))
    settings = ["--data", "folder", "--data-dir", str(photos), "--image-size", str(arguments.size), "--workers", "0"]
    settings += ["--epochs", str(arguments.epochs), "--batch-size", str(arguments.batch_size), "--replace-head"]
    settings += ["--time", f"{arguments.time:g}", "--threads", str(arguments.threads), "--max-drop", f"{ANY_DROP:g}"]
    rows = []
    for name in arguments.networks:
        rows.append(tuned(name, arguments.work, settings))
        print(f"{name}: {rows[-1].get('error') or rows[-1]['verdict']}, {rows[-1]['seconds']} s", flush=True)
    show(rows)
    if arguments.json:
        told = {"size": arguments.size, "threads": arguments.threads, "images": list(arguments.images)}
        record = describe_machine() | told | {"date": date.today().isoformat(), "rows": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return any("error" in row or not row["is_right"] for row in rows)


def write_photos(data: str, data_dir: Path, folder: Path, counts: dict[str, int]) -> None:
    """Some photos of each split, in a folder a class; whole, or not at all."""
    found = load_data(data, str(data_dir), image_size=224)
    unfinished = folder.with_name("photos.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name, count in counts.items():
        split = getattr(found, name)
        source: Encoded = split.source
        for index in range(0, len(source), max(1, len(source) // count))[:count]:
            place = unfinished / name / str(int(split.labels[index]))
            place.mkdir(parents=True, exist_ok=True)
            encoded = source.read(index)
            suffix = str(Image.open(io.BytesIO(encoded)).format).lower()
            (place / f"{index}.{suffix}").write_bytes(encoded)
    unfinished.rename(folder)


def tuned(name: str, work: Path, settings: list[str]) -> dict[str, Any]:
    """The row of a network: read if it is there, else by the command."""
    file, folder, weights = work / f"{name}.json", work / name, work / f"{name}.safetensors"
    if file.exists():
        row: dict[str, Any] = json.loads(file.read_text())
        return row
    shutil.rmtree(folder, ignore_errors=True)
    weights.write_bytes(to_bytes({key: value.contiguous() for key, value in network(name).state_dict().items()}))
    command = ["tune", f"timm:{name}", "--weights", str(weights), *settings, "--out", str(folder)]
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "dgconv", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seconds = round(time.monotonic() - begin)
    weights.unlink()
    (work / f"{name}.log").write_bytes(done.stdout)
    if done.returncode:
        last = (done.stdout.decode().strip().splitlines() or ["it said nothing"])[-1]
        return {"network": name, "seconds": seconds, "error": last}
    row = row_of(name, folder) | {"seconds": seconds}
    file.write_text(json.dumps(row, indent=1) + "\n")
    return row


def row_of(name: str, folder: Path) -> dict[str, Any]:
    results = json.loads((folder / "results.json").read_text())
    layers = results["plan"]["layers"]
    milliseconds: dict[str, dict[str, float]] = {precision: {} for precision in PRECISIONS}
    is_converted = any(row["what"].startswith("converted") for row in results["rows"])
    for row in results["bench"]["measurements"][0]["rows"]:
        if row["median"] and (row["kind"] == "dense" or (is_converted and row["form"] == OURS)):
            form = "tuned" if row["kind"] == "model" else "ours" if row["form"] == OURS else row["form"]
            milliseconds[row["precision"]][form] = round(1e3 * row["median"], 3)
    return {
        "network": name,
        "converted": sum(layer["heads"] is not None for layer in layers),
        "convolutions": len(layers),
        "native share": round(results["native_share"], 4),
        "milliseconds": milliseconds,
        "fast": results["fast"],
        "verdict": results["verdict"],
        "is_right": is_right(results, milliseconds),
        "difference": handed_back(results, folder),
        "notes": results["notes"],
    }


def is_right(results: dict[str, Any], milliseconds: dict[str, dict[str, float]]) -> bool:
    """Whether what was taken is the fastest of our forms: of the tuned network if that beats all dense ones in float32,
    of the network as it is otherwise, and whether it is called so."""
    fast = results["fast"]
    dense = min(taken for form, taken in milliseconds["float32"].items() if form != "tuned")
    candidates = {
        (form, precision): milliseconds[precision][form]
        for precision in PRECISIONS
        for form in ("ours", "tuned")
        if form in milliseconds[precision] and not (form == "tuned" and milliseconds[precision][form] >= dense)
    }
    form, precision = min(candidates, key=lambda one: candidates[one])
    is_of_best = (fast["network"], fast["precision"]) == ({"ours": "original"}.get(form, form), precision)
    return is_of_best and results["verdict"].startswith("not worth converting") == (form == "ours")


def handed_back(results: dict[str, Any], folder: Path) -> float:
    """How far what lies in fast/ is from the network that it is a form of, relative to the largest logit."""
    which = folder / "original" if results["fast"]["network"] == "original" else folder
    x = torch.randn(2, *results["input_size"], generator=torch.Generator().manual_seed(0))
    fast = deploy.load(folder / "fast")
    assert fast.precision == results["fast"]["precision"]
    with torch.no_grad():
        return difference(fast(x), load_model(which)(x))


def show(rows: list[dict[str, Any]]) -> None:
    done = [row for row in rows if "error" not in row]
    columns = [
        (precision, form)
        for precision in PRECISIONS
        for form in dict.fromkeys(form for row in done for form in row["milliseconds"][precision])
    ]
    headings = [f"{form}, {precision}" for precision, form in columns]
    table = Table("network", "converted", "native", *headings, "verdict", "right", "differs", "s")
    for row in rows:
        if "error" in row:
            table.add_row(row["network"], "", "", *[""] * len(columns), row["error"], "no", "", str(row["seconds"]))
            continue
        taken = [row["milliseconds"][precision].get(form) for precision, form in columns]
        table.add_row(
            row["network"],
            f"{row['converted']} of {row['convolutions']}",
            f"{row['native share']:.0%}",
            *("" if ms is None else f"{ms:.2f}" for ms in taken),
            row["verdict"].partition(":")[0].partition(" than")[0],
            "yes" if row["is_right"] else "no",
            f"{row['difference']:.1e}",
            str(row["seconds"]),
        )
    Console(width=220).print(table)


if __name__ == "__main__":
    sys.exit(main())
