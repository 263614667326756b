"""The commands that look inside: figures."""

import sys
from pathlib import Path

from tyro.conf import Positional

from ..files import check_folder
from . import with_flags
from ._device import find_device
from ._output import console, show


def figures(
    runs: Positional[tuple[Path, ...]],
    out: Path,
    only: tuple[str, ...] = (),
    layers: tuple[str, ...] = (),
    data_dir: str | None = None,
    examples: int = 256,
    json: bool = False,
) -> None:
    """Draw every figure that the given runs allow, as SVG and PNG, with the numbers behind it as JSON.

    Args:
        runs: Run folders, or names of published weights.
        out: Folder to write to.
        only: Names of figures, to make no others.
        layers: Numbers or ranges of the dynamic layers that maps and probabilities show, such as 5-8 33-36.
        data_dir: Folder of the data set, if it is no longer where it was.
        examples: Test images to look at one by one.
        json: Print JSON instead of lines.
    """
    from ..analysis.figures import Made, make_figures
    from ..analysis.trained_run import open_runs

    folders = open_runs(runs, data_dir, find_device(), examples)
    check_folder(out)

    def tell(made: Made) -> None:
        what = f"{made.figure} of {made.run}" if made.run else made.figure
        said = ", ".join(map(str, made.files[:2])) if made.files else f"left out: {with_flags(made.reason)}"
        console.print(f"{what}: {said}", soft_wrap=True, markup=False, highlight=False)

    results = []
    for made in make_figures(folders, out, only, layers):
        results.append(made)
        if not json:
            tell(made)
    listing = [
        {"figure": made.figure, "run": made.run, "files": list(map(str, made.files)), "reason": made.reason}
        for made in results
    ]
    show(listing, json, lambda _: None)
    if not any(made.files for made in results):
        print("dgconv: no figure could be made", file=sys.stderr)
        sys.exit(2)
