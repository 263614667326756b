"""The command that writes a report."""

from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from tyro.conf import Positional

from ..files import check_file
from ..text import PlainConsole
from ._device import find_device
from ._output import console, show

LARGE = 8_000_000  # bytes of a page


def report(
    runs: Positional[tuple[Path, ...]],
    out: Path = Path("report.html"),
    figures: bool = True,
    only: tuple[str, ...] = (),
    data_dir: str | None = None,
    examples: int = 256,
    json: bool = False,
) -> None:
    """Write one HTML file about runs: results beside the paper's, curves, figures, layers, recipe and environment.

    The file needs no network and nothing beside it.

    Args:
        runs: Run folders, or names of published weights. Several are set side by side.
        out: File to write.
        figures: Draw the figures, which takes most of the time.
        only: Names of figures, to draw no others.
        data_dir: Folder of the data set, if it is no longer where it was.
        examples: Test images to look at one by one.
        json: Print JSON instead of lines.
    """
    from ..analysis.figures.style import check_matplotlib
    from ..analysis.trained_run import open_runs
    from ..report import ALL_FIGURES, gather, write_page

    folders = open_runs(runs, data_dir, find_device(), examples)
    check_file(out)
    names = (only or ALL_FIGURES) if figures else ()
    if names:
        check_matplotlib()
    columns = (BarColumn(30), TextColumn("{task.completed:.0f}/{task.total}"), TimeElapsedColumn())
    with Progress(
        *columns, TextColumn("{task.description}", markup=False), console=PlainConsole(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("", total=None, completed=-1, visible=False)

        def begin(step: str, count: int) -> None:
            progress.update(task, total=count, advance=1, visible=True, description=step)

        contents = gather(folders, figures=names, tell=begin)
    size = write_page(contents, out)
    missing = [
        (section.folder, one) for section in contents.sections for one in section.missing + section.figures_left_out
    ]
    missing += [("", one) for one in contents.figures_left_out]
    listing = {
        "file": str(out),
        "bytes": size,
        "missing": [{"run": run, "what": one.what, "reason": one.reason} for run, one in missing],
    }

    def tell(_: object) -> None:
        console.print(f"{out}: {size / 1e6:.1f} MB", soft_wrap=True, markup=False, highlight=False)
        if size > LARGE:
            console.print(
                "That is much for a page; fewer runs, or --only with the names of a few figures, make it smaller"
            )
        if missing:
            things = "1 thing is" if len(missing) == 1 else f"{len(missing)} things are"
            console.print(f"{things} not in it; it says which, and why")

    show(listing, json, tell)
