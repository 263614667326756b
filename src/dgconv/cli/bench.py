"""The command that measures how long networks take."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from tyro.conf import Positional

from ..bench.networks import find_networks
from ..bench.picture import check_picture, draw_bench
from ..bench.run import Tell, run_bench
from ..deploy.precision import Precision
from ..errors import visible
from ..files import check_file
from ..text import PlainConsole
from ._output import console, show


def bench(
    model: Positional[str],
    batch_sizes: tuple[int, ...] = (1,),
    threads: tuple[int, ...] = (),
    precision: tuple[Precision, ...] = ("float32",),
    pruning_rate: float | None = None,
    input_size: tuple[int, int, int] | None = None,
    repeats: int | None = None,
    compile: bool = False,
    json: bool = False,
    picture: Path | None = None,
) -> None:
    """Measure how long a network takes on this CPU: dense, with standard and with dynamic group convolution.

    The dense one in torch, ncnn, ONNX Runtime and OpenVINO, all prepared by dgconv, with ratios to the fastest of the
    others. Weights are random, but for a run.

    Args:
        model: Name of a model or recipe, a .toml file, or a run folder.
        batch_sizes: Images at a time.
        threads: Numbers of threads; default 1 and all cores.
        precision: float32, int8, or both; a ratio is to the fastest of the same precision.
        pruning_rate: Share of the input channels each head leaves out.
        input_size: Channels, height, width; default as the model is trained.
        repeats: Timed calls of each form; default as many as 8 seconds hold, at least 5.
        compile: Measure torch.compile too, which takes a minute or more to compile.
        json: Print JSON instead of a table.
        picture: File to draw them into: .png, .svg or .pdf.
    """
    if picture:
        check_file(picture)
        check_picture(picture)
    with _progress(PlainConsole(stderr=True)) as tell:
        networks = find_networks(model, pruning_rate=pruning_rate, input_size=input_size)
        measured = run_bench(
            networks.title,
            networks.by_kind,
            networks.input_size,
            batch_sizes=batch_sizes,
            threads=threads,
            precisions=precision,
            repeats=repeats,
            compile=compile,
            tell=tell,
        )
    for warning in measured.warnings:
        print(f"dgconv: warning: {visible(warning)}", file=sys.stderr)
    show(measured.to_dict(), json, lambda _: console.print(measured.tables(console.width)))
    if picture:
        draw_bench(measured, picture)


@contextmanager
def _progress(console: Console) -> Iterator[Tell]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("making the networks", total=None)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield tell
