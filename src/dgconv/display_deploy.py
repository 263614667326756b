"""What the command line shows about exported and measured networks."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .deploy.bench import Bench, Measurement, Row, Tell
from .deploy.bench_picture import LABELS
from .deploy.export import Exported


def print_export(console: Console, exported: Exported) -> None:
    size = "x".join(map(str, exported.input_size))
    console.print(
        f"{exported.file}: {exported.format}, {exported.bytes / 1e6:.1f} MB, images {size}, batches of any size. "
        f"Checked: differs from the network by {exported.difference:.1g} of the largest logit.",
        soft_wrap=True,
    )
    if exported.note:
        console.print(f"{exported.note}.", soft_wrap=True)


@contextmanager
def bench_progress(console: Console) -> Iterator[Tell]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("making the networks", total=None)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield tell


def print_bench(console: Console, bench: Bench) -> None:
    """A table for each batch size, with a group of columns for each number of threads."""
    console.print("  ".join(f"{name} {value or 'not installed'}" for name, value in bench.machine.items()))
    for batch_size in dict.fromkeys(measurement.batch_size for measurement in bench.measurements):
        group = [measurement for measurement in bench.measurements if measurement.batch_size == batch_size]
        size = "x".join(map(str, bench.input_size))
        table = Table(
            title=f"{bench.model} at {size}, pruning rate {bench.pruning_rate:.3g}, batch {batch_size}",
            box=box.SIMPLE_HEAD,
            title_justify="left",
        )
        table.add_column("network, form", no_wrap=True)
        for measurement in group:
            threads = f"{measurement.threads} thread{'s' * (measurement.threads > 1)}"
            for heading in (f"{threads}\nms", "\nquartiles", "\nspeed-up"):
                table.add_column(heading, justify="right", no_wrap=True)
        for rows in zip(*(measurement.rows for measurement in group), strict=True):
            name = f"{LABELS[rows[0].kind]}, {rows[0].form}"
            table.add_row(name, *(cell for row in rows for cell in _cells(row)))
        if any(measurement.split for measurement in group):
            table.add_section()
            for part in dict.fromkeys(part for measurement in group for part in measurement.split):
                table.add_row(f"  of DGC, prepared: {part}", *(c for m in group for c in _split_cells(m, part)))
        console.print(table)
    console.print(
        "Speed-up is over the fastest dense form. Medians and quartiles of interleaved repeats, each after a pause and "
        "some untimed calls of the same form."
    )
    if any(row.layout for measurement in bench.measurements for row in measurement.rows):
        console.print("torch: the faster of NCHW and NHWC.")
    if any(measurement.split for measurement in bench.measurements):
        console.print("Parts of the prepared DGC were timed in calls of their own; with their share of the sum.")


def _cells(row: Row) -> tuple[str, str, str]:
    if row.median is None or row.quartiles is None or row.speedup is None:
        return row.missing, "", ""
    low, high = row.quartiles
    return f"{1e3 * row.median:.2f}", f"{1e3 * low:.2f}-{1e3 * high:.2f}", f"{row.speedup:.2f}x"


def _split_cells(measurement: Measurement, part: str) -> tuple[str, str, str]:
    total = sum(measurement.split.values())
    seconds = measurement.split.get(part, 0.0)
    return f"{1e3 * seconds:.2f}", "", f"{100 * seconds / total:.0f} %" if total else ""
