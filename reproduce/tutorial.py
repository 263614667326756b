"""Writes docs/tutorial.md from a real run: a folder of photos, a network trained on it, and ``dgconv tune``.

    python -m reproduce.tutorial [--parquet DIR] [--work DIR] [--classes 3] [--most 300] [--image-size 64] [--epochs 12]

The photos are those of a Parquet data set, as Imagenette, written into one folder a class; or the digits that come with
dgconv, as files. Every figure on the page is what the commands printed.
"""

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
import tyro
from PIL import Image

from dgconv.data import TensorSplit, load_data
from dgconv.environment import has_fast_bfloat16
from dgconv.text import PlainConsole
from dgconv.tuning import Plan

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
WIDTH = 100  # columns of what commands print

PAGE = """\
# From a folder of photos to a fast network

This page is written by `python -m reproduce.tutorial`, which runs every command below and puts down what it printed.
The machine: {hardware}, {cores} cores.

## 1. A folder of photos

One folder a class, for training and for testing: {train} images to train on, {test} to test on, {classes} classes.

```text
{tree}
```

(Without a `test/` folder a fifth of the training photos, always the same, is taken to test on, and that is said.)

## 2. A network that was trained on them

You may have one: `dgconv tune` takes `timm:NAME`, `torchvision:NAME` or `FILE.py:FUNCTION` with `--weights FILE`, too.
Here it is one that is trained from nothing:

```text
$ {train_command}
{train_output}
```

## 3. Make it fast

```text
$ {tune_command}
{tune_output}
```

![What each step cost and gained](tutorial.svg)

The run folder holds `fast/`, the float network, `plan.json` to repeat the decisions, and `report.html` with all
runtimes and all layers side by side. Stopped by Ctrl-C, a time limit or a lost machine, it goes on exactly with
`dgconv tune --resume`.

## 4. What was decided, and why

`dgconv tune ... --dry-run` prints the plan and an estimate of the time, and trains nothing. Here is the one that was
followed, as `print(dgconv.tuning.Plan.from_dict(...))` shows `tuned/plan.json`:

```text
{plan_output}
```

Each convolution was timed on this machine, dense and dynamic, in float32 and in int8. Those that gain nothing are left
as they are, and the last column says why.

## 5. Use it

```text
$ {predict_command}
{predict_output}
```

In a program of yours, which needs no code of the network:

<!-- not run: needs the run folder that the command above wrote -->
```python
import torch
from dgconv import deploy

network = deploy.load("{fast}")
logits = network(torch.zeros(1, 3, {size}, {size}))  # normalized images
```

With a training loop of your own, the same pieces are there: `dgconv.plan(model, example)` says what to convert,
`plan.apply_(model)` converts it, `dgconv.train.controllers_of(model, teacher=dense)` raises the rate and adds
`dgconv.train.Distillation`; or all of it in one call, `dgconv.tune(model, train_loader, test_loader)`.
"""


def main(
    parquet: Path | None = None,
    work: Path = Path("build/tutorial"),
    classes: int = 3,
    most: int = 300,
    image_size: int = 64,
    epochs: int = 12,
    tune_epochs: int = 0,
    time: Annotated[float, tyro.conf.arg(help="Minutes for dgconv tune.")] = 20.0,
    network: str = "resnet18",
    batch_size: int = 64,
) -> None:
    """Write docs/tutorial.md and its picture.

    Args:
        tune_epochs: default as many as the time allows.
    """
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)
    counts, names = write_photos(parquet, Path("photos"), classes, most) if parquet else write_digits(Path("photos"))
    data = ["--data", "folder", "--data-dir", "photos", "--image-size", str(image_size)]
    learning = ["--epochs", str(epochs), "--batch-size", str(batch_size), "--learning-rate", "0.05"]
    crops = ["--smallest-crop", "0.35" if parquet else "0.7"]
    learning += ["--precision", "bfloat16"] if has_fast_bfloat16("cpu") else []
    train = ["dgconv", "train", "--model", network, *data, *learning, *crops, "--in-memory", "--out", "dense"]
    tune = ["dgconv", "tune", "dense", *data, *crops, "--in-memory", "--time", f"{time:g}"]
    tune += ["--epochs", str(tune_epochs)] if tune_epochs else []
    photo = next(Path(f"photos/test/{names[0]}").iterdir())
    outputs = {
        "train": run(train, Path("dense/config.json")),
        "tune": run([*tune, "--out", "tuned"], Path("tuned/results.json")),
        "predict": run(["dgconv", "predict", "tuned/fast", str(photo)], None),
    }
    results = json.loads(Path("tuned/results.json").read_text())
    outputs["plan"] = print_plan(results["plan"])
    shown = {
        "train": train,
        "tune": [*tune, "--out", "tuned"],
        "predict": ["dgconv", "predict", "tuned/fast", str(photo)],
    }
    page = PAGE.format(
        hardware=results["environment"]["hardware"],
        cores=results["bench"]["machine"]["cores"],
        train=counts["train"],
        test=counts["test"],
        classes=len(names),
        tree=tree(names),
        fast="tuned/fast",
        size=image_size,
        **{f"{name}_command": shlex.join(command) for name, command in shown.items()},
        **{f"{name}_output": output for name, output in outputs.items()},
    )
    (DOCS / "tutorial.md").write_text(page)
    draw(results, DOCS / "tutorial.svg")
    print(f"{DOCS / 'tutorial.md'} is written")


def write_photos(parquet: Path, folder: Path, classes: int, most: int) -> tuple[dict[str, int], list[str]]:
    """So many photos, at most, of each of the first classes of a Parquet data set as files; to test on a third as
    many."""
    counts: dict[str, int] = {}
    names: list[str] = []
    for split in ("train", "test"):
        number = 0
        left = dict.fromkeys(range(classes), most if split == "train" else most // 3)
        for file in sorted(parquet.glob(f"{split}-*.parquet")):
            table = pq.read_table(file)
            about = json.loads(table.schema.metadata[b"huggingface"])
            names = about["info"]["features"]["label"]["names"][:classes]
            for image, label in zip(table["image"], table["label"], strict=True):
                if not left.get(label.as_py()):
                    continue
                left[label.as_py()] -= 1
                place = folder / split / names[label.as_py()].replace(" ", "-")
                place.mkdir(parents=True, exist_ok=True)
                path = place / f"{number:05}.jpg"
                number += 1
                if not path.exists():
                    path.write_bytes(io.BytesIO(image["bytes"].as_py()).getvalue())
        counts[split] = number
    return counts, [name.replace(" ", "-") for name in names]


def write_digits(folder: Path) -> tuple[dict[str, int], list[str]]:
    """The digits that come with dgconv, as files."""
    data = load_data("digits")
    for split, part in (("train", data.train), ("test", data.test)):
        assert isinstance(part, TensorSplit)
        for number, (image, label) in enumerate(zip(part.images, part.labels, strict=True)):
            place = folder / split / data.classes[label]
            place.mkdir(parents=True, exist_ok=True)
            path = place / f"{number:05}.png"
            if not path.exists():
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    return {"train": len(data.train), "test": len(data.test)}, data.classes


def tree(names: list[str]) -> str:
    return "\n".join(f"photos/{split}/{name}/..." for split in ("train", "test") for name in (*names[:2], names[-1]))


def run(command: list[str], made: Path | None) -> str:
    """What a command prints; of one that was run before, as it was."""
    log = Path(f"{made.parent.name if made else '-'.join(command[1:2])}.log")
    if made is None or not made.exists() or not log.exists():
        environment = os.environ | {"COLUMNS": str(WIDTH), "TERM": "dumb", "NO_COLOR": "1"}
        program = [sys.executable, "-m", *command]
        result = subprocess.run(program, capture_output=True, text=True, env=environment)
        if result.returncode:
            raise SystemExit(f"{shlex.join(command)}:\n{result.stdout}\n{result.stderr}")
        log.write_text(result.stdout)
    return "\n".join(line.rstrip() for line in log.read_text().strip().splitlines())


def print_plan(values: dict) -> str:
    console = PlainConsole(width=WIDTH, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(Plan.from_dict(values, "the plan"))
    return "\n".join(line.rstrip() for line in captured.get().strip().splitlines())


def draw(results: dict, file: Path) -> None:
    """Milliseconds of every form, and the error of each step."""
    from matplotlib.figure import Figure

    rows = [row for row in results["bench"]["measurements"][0]["rows"] if row["median"]]
    rows.sort(key=lambda row: -row["median"])
    figure = Figure(figsize=(9, 0.3 * len(rows) + 1.2), layout="constrained")
    times, errors = figure.subplots(1, 2)
    names = [
        f"{'tuned' if row['kind'] == 'model' else 'as it is'}, "
        f"{'dgconv' if row['form'] == 'prepared' else row['form']}{' int8' * (row['precision'] == 'int8')}"
        for row in rows
    ]
    colours = ["#009E73" if row["kind"] == "model" else "#0072B2" for row in rows]
    bars = times.barh(names, [1e3 * row["median"] for row in rows], color=colours)
    times.bar_label(bars, [f"{1e3 * row['median']:.2f}" for row in rows], padding=3, fontsize=8)
    times.set_xlabel("ms an image")
    steps = [f"{row['what']}\n{row['precision']}" for row in results["rows"]]
    bars = errors.barh(steps, [row["error"] for row in results["rows"]], color="#E69F00")
    errors.bar_label(bars, [f"{row['error']:.2f}" for row in results["rows"]], padding=3, fontsize=8)
    errors.invert_yaxis()
    errors.set_xlabel("error, %")
    for panel in (times, errors):
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        panel.margins(x=0.15)
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    tyro.cli(main)
