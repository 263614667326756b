"""The command that trains and measures the networks of a study, and draws error over milliseconds."""

import sys
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Column
from tyro.conf import Positional

from ..compare.frontier import PICTURE, PRECISIONS, Frontier, PointResult
from ..errors import UserError, visible
from ..files import check_folder
from ..text import PlainConsole, print_table
from ..values import SIZE
from ._device import find_device
from ._output import console, show


def frontier(
    study: Positional[Path],
    data_dir: str | None = None,
    seeds: tuple[int, ...] = (0,),
    points: tuple[str, ...] = (),
    image_sizes: tuple[int, ...] = (64, 224),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    side_by_side: int | None = None,
    stop_after: float | None = None,
    only_measure: bool = False,
    dry_run: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Train the networks of a study by one recipe with one teacher, and set their error beside their milliseconds.

    Each network is deployed in float32 and int8 and timed at several image sizes, all in one sitting; those that no
    other one beats are marked. Runs that exist are reused, and those that were stopped go on.

    Args:
        study: TOML file that plans it: [shared] settings, [teacher], [families], and [points] to compare.
        data_dir: Folder of the data set.
        seeds: Train each network once for each of these.
        points: Only these of the study.
        image_sizes: Sides of the images on which networks are timed.
        device: Where to train; auto takes a GPU, and there trains six networks at a time.
        side_by_side: Networks trained at a time.
        stop_after: Minutes after which all is saved; the same command goes on.
        only_measure: Train nothing; deploy and time what is trained.
        dry_run: Print the plan only.
        out: Folder of the runs, frontier.json and frontier.png; default runs/frontier-STUDY.
        json: Print JSON instead of a table.
    """
    from ..compare.frontier import figure_of, frontier_of, write_frontier
    from ..compare.study import Study, deploy_runs, is_trained, plan_study, train_study
    from ..train import Stopped
    from ..train.stop import TimeLimit
    from ._display import TrainingDisplay

    for name, given in {"seeds": seeds, "image_sizes": image_sizes}.items():
        if not given:
            raise UserError(f"`{name}` stands there with nothing behind it; name at least one, or leave it out")
    for side in image_sizes:
        SIZE.check("image_sizes", side)
    plan = Study.read(study).only(points)
    folder = out or Path("runs") / f"frontier-{study.stem}"
    runs = plan_study(plan, seeds, data_dir, folder)
    if dry_run:
        rows = [[run.point.name, run.point.family, str(run.seed), _state(is_trained(run))] for run in runs]
        epochs = sum(run.recipe.training.epochs for run in runs if not is_trained(run))
        show(
            [dict(zip(("point", "family", "seed", "state"), row, strict=True)) for row in rows],
            json,
            lambda _: print_table(
                console, f"{len(runs)} networks, {epochs} epochs to train",
                [Column(name) for name in ("point", "family", "seed", "state")], rows, ("family",),
            ),
        )  # fmt: skip
        return
    check_folder(folder)
    err = PlainConsole(stderr=True)
    if not only_measure:
        epochs_of = [run.recipe.training.epochs for run in runs]
        try:
            with TrainingDisplay(PlainConsole(stderr=json), epochs_of) as watcher:
                train_study(
                    plan, runs, data_dir, folder, device=find_device(device), watcher=watcher,
                    time_limit=TimeLimit(stop_after) if stop_after else None, side_by_side=side_by_side,
                )  # fmt: skip
        except Stopped as stopped:
            print(f"dgconv: {visible(stopped.telling('The same command goes on'))}", file=sys.stderr)
            sys.exit(stopped.exit_status)
    if any(is_trained(run) and not run.is_deployed for run in runs):
        deploy_runs(runs, runs[0].recipe.load_data())
    found = frontier_of(plan, runs, image_sizes, tell=lambda text: err.print(text, highlight=False))
    write_frontier(found, folder)
    figure_of(found, str(image_sizes[0])).savefig(folder / PICTURE, dpi=150)
    show(found.to_dict(), json, lambda _: print_frontier(console, found, folder))


def _state(trained: bool) -> str:
    return "trained" if trained else "to train"


def print_frontier(console: Console, found: Frontier, folder: Path) -> None:
    """A row a point, the fastest first; a star marks what nothing beats."""
    sides = list(dict.fromkeys(side for point in found.points for side in point.ms))
    if not sides:
        raise UserError("nothing could be timed; the lines above say why")
    headings = ["point", "family", "seeds", *(f"error {precision}" for precision in PRECISIONS)]
    headings += [f"ms {precision}, {side} px" for side in sides for precision in PRECISIONS]
    rows = [_row(point, found, sides) for point in found.points]
    columns = [Column(heading, justify="left" if n < 2 else "right") for n, heading in enumerate(headings)]
    print_table(console, found.title, columns, rows, ("family", "seeds", "error float32"))
    console.print(f"* no other one is faster and better. Files: {folder}", soft_wrap=True)


def _row(point: PointResult, found: Frontier, sides: list[str]) -> list[str]:
    errors = [f"{point.error(p):.2f}" if point.errors(p) else "" for p in PRECISIONS]
    times = []
    for side in sides:
        for precision in PRECISIONS:
            ms = point.ms.get(side, {}).get(precision)
            star = "*" if ms and point in found.best(precision, side) else ""
            times.append(f"{ms:.2f}{star}" if ms else "")
    return [point.name, point.family, str(len(point.seeds)), *errors, *times]
