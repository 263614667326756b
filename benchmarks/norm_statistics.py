"""What the batch norms' running statistics are worth: errors with them, and with statistics taken anew.

    python benchmarks/norm_statistics.py RUN [RUN ...] --data-dir DIR [--images 10000] [--json FILE]

In training a batch norm keeps a running mean over some ten batches. Here the statistics of a trained network are taken
over many more training images, augmented as in training; its weights stay as they are. All is computed in float32. With
--json rows are added to those the file has already, so that runs on several data sets can share it.
"""

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import update_bn

from dgconv.analysis.trained_run import TrainedRun
from dgconv.deploy import prepare
from dgconv.environment import describe_environment
from dgconv.errors import UserError
from dgconv.train import evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders with weights")
    parser.add_argument("--data-dir", help="folder of their data set")
    parser.add_argument("--images", type=int, default=10_000, help="training images to take the statistics over")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    try:
        for folder in args.runs:
            row = measure(TrainedRun(folder, args.data_dir), args.images)
            print("{name}, seed {seed}: {error:.2f} % -> {error_anew:.2f} %, ".format(**row), end="")
            print("loss {loss:.4f} -> {loss_anew:.4f}".format(**row), flush=True)
            if args.json:
                add_row(args.json, row)
    except UserError as error:
        parser.error(str(error))


def measure(run: TrainedRun, images: int) -> dict[str, Any]:
    before = evaluate(prepare(run.model.eval()), run.data.test)
    batch_size = min(run.recipe.training.batch_size, images)
    batches = run.data.train.batches(batch_size, train=True, generator=torch.Generator().manual_seed(0))
    update_bn((x for x, _ in islice(batches, images // batch_size)), run.model)
    after = evaluate(prepare(run.model.eval()), run.data.test)
    return {
        "name": run.recipe.run_name,
        "seed": run.recipe.training.seed,
        "images": images,
        "error": before.error,
        "error_anew": after.error,
        "loss": before.loss,
        "loss_anew": after.loss,
    }


def add_row(file: Path, row: dict[str, Any]) -> None:
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = [other for other in rows if (other["name"], other["seed"]) != (row["name"], row["seed"])] + [row]
    rows.sort(key=lambda row: (row["name"], row["seed"]))
    file.write_text(json.dumps(describe_environment("cpu") | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
