"""The command that says what is in images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import Positional

from ..analysis.predict import Prediction, Predictions, open_predictor
from ..data.brought import bring
from ..deploy.precision import Precision
from ..errors import UserError, visible
from ..files import check_file
from ..text import PlainConsole
from ._device import find_device
from ._output import console, show


def predict(
    network: Positional[Path],
    images: Positional[tuple[Path, ...]],
    top: int = 3,
    precision: Precision | None = None,
    data_dir: str | None = None,
    workers: int | None = None,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Say what is in images: the likeliest classes with their scores, and how many images a second that was.

    An image that cannot be read is named among the others, and stops none of them.

    Args:
        network: Run folder, the name of published weights, or a folder that 'dgconv export' wrote as prepared.
        images: Image files, folders of them, or Parquet files.
        top: How many classes to name.
        precision: int8 is for the CPU and takes the ranges of numbers from the run's data set; default as exported.
        data_dir: Folder of the run's data set, if it is needed and no longer where it was.
        workers: Processes that decode; default one a core, and none for a few images.
        json: Print JSON instead of a table.
        out: Parquet file to write instead of a table.
    """
    if out is not None:
        if out.suffix != ".parquet":
            raise UserError(f"`out` must be a file that ends in .parquet, got {out}")
        check_file(out)
    if top < 1:
        raise UserError(f"`top` must be at least 1, got {top}")
    brought = bring(images)
    device = find_device() if precision in (None, "float32") else "cpu"
    predictor = open_predictor(network, precision, data_dir=data_dir, device=device)
    with _progress(len(brought)) as tell:
        predictions = predictor(brought, top, workers, tell)
    if out is not None:
        predictions.write_parquet(out)
    show(predictions.to_dict(), json, lambda _: print_predictions(console, predictions, out))
    if not predictions.answered:
        raise UserError("no image has an answer; what is wrong with each is said above")


def print_predictions(console: Console, predictions: Predictions, out: Path | None = None) -> None:
    rows = predictions.rows
    if out is None:
        console.print(_table(rows))
    for row in rows:
        if row.problem:
            console.print(f"{row.image}: {visible(row.problem)}", soft_wrap=True, markup=False)
    if out is not None:
        console.print(f"{out}: {len(rows):,} rows", soft_wrap=True, markup=False)
    if without := len(rows) - predictions.answered:
        console.print(f"{without:,} of {len(rows):,} images have no answer", soft_wrap=True)
    if predictions.answered:
        console.print(
            f"{len(rows):,} images in {predictions.seconds:.2f} s: {predictions.images_per_second:,.1f} images/s, "
            f"{predictions.network_images_per_second:,.1f} in the network",
            soft_wrap=True,
        )


def _table(rows: list[Prediction]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("image", overflow="fold")
    table.add_column("class", overflow="fold")
    table.add_column("score", justify="right")
    others = max((len(row.classes) for row in rows), default=0) > 1
    if others:
        table.add_column("next", overflow="fold")
    for row in rows:
        if row.problem:
            continue
        named = [f"{visible(name)} {score:.3f}" for name, score in zip(row.classes, row.scores, strict=True)]
        cells = [visible(row.image), visible(row.classes[0]), f"{row.scores[0]:.3f}"]
        table.add_row(*cells, *([", ".join(named[1:])] if others else []))
    return table


@contextmanager
def _progress(images: int) -> Iterator[Callable[[int], None]]:
    err = PlainConsole(stderr=True)
    columns = (TextColumn("images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=images)
        yield lambda done: progress.update(task, completed=done)
