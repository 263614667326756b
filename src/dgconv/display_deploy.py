"""What the command line shows about exported and measured networks."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .deploy.bench import Tell
from .deploy.bench_result import Bench
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
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("making the networks", total=None)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield tell


def print_bench(console: Console, bench: Bench) -> None:
    console.print(bench.tables(console.width))
