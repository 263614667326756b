"""The command that sets all methods side by side."""

import sys
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Column

from ..compare.table import HEADINGS, Comparison, table_rows
from ..errors import visible
from ..files import check_folder
from ..text import PlainConsole, print_table
from ._device import find_device
from ._output import console, show


def compare(
    backbone: str = "resnet20",
    methods: str = "",
    data: str = "digits",
    data_dir: str | None = None,
    budget: float = 0.5,
    seeds: tuple[int, ...] = (0,),
    epochs: int | None = None,
    batch_size: int = 64,
    learning_rate: float = 0.05,
    clip_gradients: float = 5.0,
    image_size: int | None = None,
    width: float | None = None,
    precision: Literal["float32", "bfloat16"] = "float32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Train the paper's rivals by one recipe at matched MACs, and set error, MACs and measured latency side by side.

    Runs that exist in the folder are reused, and those that were stopped go on. Without arguments: all methods with a
    ResNet-20 on the embedded digits, in about five minutes on two cores.

    Args:
        backbone: Network whose convolutions the methods replace or prune.
        methods: Names, separated by commas; default all there are.
        data: Data set: digits, cifar10, cifar100, parquet or folder.
        data_dir: Folder of the data set; the digits need none.
        budget: MACs of each method, as a share of the dense network's ('paper' convention).
        seeds: Train each method once for each of these.
        epochs: Of each training; default 15 for the digits, otherwise 30.
        batch_size: Images a step.
        learning_rate: At the start; it falls to 0 along half a cosine.
        clip_gradients: Largest norm of all gradients of a step together.
        image_size: Side of the images; default 16 for the digits.
        width: First channels of a ResNet, multiplier of a MobileNetV2.
        precision: bfloat16: the forward pass in mixed precision.
        device: Where to train; auto takes a GPU, and there trains six networks at a time.
        out: Folder of the runs, compare.json, .md, .csv and .png; default runs/compare-BACKBONE-DATA.
        json: Print JSON instead of a table.
    """
    from ..compare import CompareSettings
    from ..compare import compare as run_comparison
    from ..train import Stopped
    from ._display import TrainingDisplay

    settings = CompareSettings(
        backbone,
        methods,
        data,
        data_dir,
        budget,
        seeds,
        epochs,
        batch_size,
        learning_rate,
        clip_gradients,
        image_size,
        width,
        precision,
    )
    folder = out or Path("runs") / f"compare-{backbone}-{data}"
    check_folder(folder)
    watchers = partial(TrainingDisplay, PlainConsole(stderr=json))
    try:
        comparison = run_comparison(settings, folder, device=find_device(device), watchers=watchers)
    except Stopped as stopped:
        telling = stopped.telling(f"The same command goes on with what is in {folder}")
        print(f"dgconv: {visible(telling)}", file=sys.stderr)
        sys.exit(stopped.exit_status)
    show(comparison.to_dict(), json, lambda _: print_comparison(console, comparison, folder))


def print_comparison(console: Console, comparison: Comparison, folder: Path) -> None:
    *figures, how, _ = HEADINGS
    headings = [heading.replace(", M ", ", M\n") for heading in figures]
    columns = [Column(heading, justify="right" if number else "left") for number, heading in enumerate(headings)]
    rows = [[*cells, f"{cell}; {remark}" if remark else cell] for *cells, cell, remark in table_rows(comparison)]
    less_needed = ("MACs, M\n('authors')", "parameters, k", "share")
    print_table(console, comparison.title, [*columns, Column(how, min_width=len(how))], rows, less_needed)
    console.print(f"{comparison.fine_print}.", soft_wrap=True)
    console.print(f"Files: {folder}", soft_wrap=True)
