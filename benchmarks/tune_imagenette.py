"""Imagenette at 128 px: a dense ResNet-18 by ``dgconv train``, then one ``dgconv tune``, and what came out of it.

    python benchmarks/tune_imagenette.py DATA_DIR [--work DIR] [--dense RUN] [--time 90] [--json FILE]

DATA_DIR holds the Parquet files. ``--dense`` takes a run that was trained before, perhaps on a GPU. In the end both
networks are timed at 128 and at 224 px, each size in one run, and every bar is told with its figure. Each part that is
there already, in the work folder, is not done again; a tuning that was stopped goes on.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from dgconv import bench
from dgconv.models import load_model
from dgconv.runs import RunFolder
from dgconv.tuning.network import plain

SIZE = 128
SIZES = (128, 224)
DENSE_EPOCHS = 40
LEAST_ACCURACY, MOST_DROP, LEAST_FLOAT, LEAST_INT8 = 88.0, 1.0, 2.5, 1.8


@dataclass(frozen=True)
class Bar:
    what: str
    figure: float
    bound: str
    is_met: bool


def main(
    data_dir: tyro.conf.Positional[Path],
    work: Path = Path("build/tune_imagenette"),
    dense: Path | None = None,
    time: float = 90.0,
    pruning_rate: float | None = None,
    learning_rate: float | None = None,
    dense_epochs: int = DENSE_EPOCHS,
    threads: int = 1,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Train, tune and measure; print the bars."""
    work.mkdir(parents=True, exist_ok=True)
    data = [
        "--data",
        "parquet",
        "--data-dir",
        str(data_dir),
        "--image-size",
        str(SIZE),
        "--smallest-crop",
        "0.35",
        "--in-memory",
    ]
    dense = dense or work / "dense"
    if not RunFolder(dense).has_config:
        settings = ["--epochs", str(dense_epochs), "--learning-rate", "0.1", "--weight-decay", "0.0005"]
        dgconv("train", "--model", "resnet18", *data, *settings, "--label-smoothing", "0.1", "--out", str(dense))
    tuned = work / "tuned"
    if not (tuned / "results.json").exists():
        if (tuned / "tune.json").exists():
            dgconv("tune", "--resume", str(tuned))
        else:
            given = {"--time": time, "--pruning-rate": pruning_rate, "--learning-rate": learning_rate}
            settings = [word for flag, value in given.items() if value is not None for word in (flag, f"{value:g}")]
            dgconv("tune", str(dense), *data, *settings, "--out", str(tuned))
    results = json.loads((tuned / "results.json").read_text())
    before, after = results["error_before"], results["fast"]["error"]
    bars = [
        Bar(
            "accuracy of the dense network, %",
            100 - before,
            f"at least {LEAST_ACCURACY}",
            100 - before >= LEAST_ACCURACY,
        ),
        Bar(
            "error above the dense network, points", after - before, f"at most {MOST_DROP}", after - before <= MOST_DROP
        ),
    ]
    timed = {size: time_at(size, load_model(dense), load_model(tuned), threads) for size in SIZES}
    for size, found in timed.items():
        for precision, least in (("float32", LEAST_FLOAT), ("int8", LEAST_INT8)):
            gain = found[f"over {precision}"]
            bars.append(
                Bar(
                    f"{size} px, over the fastest dense {precision} ({found[precision]})",
                    gain,
                    f"at least {least}",
                    gain >= least,
                )
            )
    for bar in bars:
        print(f"{bar.what}: {bar.figure:.2f}, {bar.bound}: {'met' if bar.is_met else 'not met'}")
    if json_file:
        json_file.write_text(json.dumps({"bars": [vars(bar) for bar in bars], "times": timed}, indent=1) + "\n")


def dgconv(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "dgconv", *arguments], check=True)


def time_at(size: int, dense: torch.nn.Module, tuned: torch.nn.Module, threads: int) -> dict:
    """Our fastest form of the tuned network against the fastest dense form of all, in each precision; in one run."""
    images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    calibration = torch.randn(32, 3, size, size, generator=torch.Generator().manual_seed(1))
    both = ("float32", "int8")
    found = bench.measure(
        plain(tuned), images, dense=plain(dense), threads=threads, precision=both, calibration=calibration
    )
    print(found)
    rows = [row for row in found.measurements[0].rows if row.median]
    ours = min(row.median for row in rows if row.kind == "model" and row.form == "prepared")
    result: dict = {"ours": ours}
    for precision in both:
        best = min((row for row in rows if row.kind == "dense" and row.precision == precision), key=lambda r: r.median)
        result |= {precision: best.name, f"over {precision}": best.median / ours}
    return result


if __name__ == "__main__":
    tyro.cli(main)
