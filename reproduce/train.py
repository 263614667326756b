"""The command that trains what the result pages still miss."""

import shlex
import sys
from pathlib import Path
from typing import Literal

from rich.table import Column
from tyro.conf import Positional

from dgconv.cli._device import find_device
from dgconv.cli._display import TrainingDisplay
from dgconv.cli._output import console, show
from dgconv.errors import UserError
from dgconv.text import PlainConsole, print_table
from dgconv.train import Stopped, TimeLimit, train_all
from dgconv.train.distributed import started_by_torchrun

from .checkout import Checkout
from .commands import HERE
from .missing import MissingRun, plan, with_data


def train(
    recipes: Positional[tuple[str, ...]] = (),
    data_dir: Path | None = None,
    out: Path = Path("runs/reproduce"),
    side_by_side: int | None = None,
    stop_after: float | None = None,
    compile: bool = False,
    dry_run: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    root: Path = HERE,
    json: bool = False,
) -> None:
    """Train every run that docs/results.md lists as missing; the same command again goes on where it stopped.

    Args:
        recipes: Only these, as shell patterns, such as 'cifar10_*'.
        data_dir: Folder that holds the data sets, as cifar10/, cifar100/ and imagenet/.
        out: Folder of the run folders.
        side_by_side: Networks to train at a time; when one is done, the next begins. Default: 6 on a GPU, 1 on a CPU.
        stop_after: Minutes after which to save and stop, with exit status 0; for a machine lent for a while.
        compile: Train through torch.compile, as 'dgconv train --compile' does.
        dry_run: Only list them, and how far each is.
        device: Where to train; auto takes a GPU if there is one.
        root: The checkout of dgconv whose records count.
        json: Print JSON instead of a table.
    """
    limit = TimeLimit(stop_after) if stop_after is not None else None
    if started_by_torchrun():
        raise UserError("reproduce trains several networks at a time on one device; start it without torchrun")
    runs = plan(Checkout(root).groups, recipes, out)
    if recipes and not runs:
        raise UserError(
            f"no missing run matches {' or '.join(recipes)}; 'python -m reproduce train --dry-run' lists them all"
        )
    to_train = [run for run in runs if not run.is_done]
    if to_train and not dry_run:
        if data_dir is None:
            raise UserError("name the folder that holds cifar10/, cifar100/ and imagenet/ with `data_dir`")
        jobs = [(run.recipe.changed(compile=compile), run.folder) for run in with_data(to_train, data_dir)]
        with TrainingDisplay(PlainConsole(stderr=json), [recipe.training.epochs for recipe, _ in jobs]) as display:
            try:
                train_all(
                    jobs,
                    device=find_device(device),
                    watcher=display,
                    resuming="begun",
                    time_limit=limit,
                    side_by_side=side_by_side,
                )
            except Stopped as stopped:
                told = stopped.telling(f"The same command goes on with what is in {out}")
                print(told, file=sys.stderr)
                sys.exit(stopped.exit_status)
        runs = plan(Checkout(root).groups, recipes, out)
    show([run.to_dict() for run in runs], json, lambda _: _print(runs))


def _print(runs: list[MissingRun]) -> None:
    title = f"{len(runs)} missing run{'s' * (len(runs) != 1)}"
    columns = [Column("run folder", min_width=40), Column("epochs", justify="right"), Column("state")]
    rows = [[str(run.folder), str(run.recipe.training.epochs), run.state] for run in runs]
    print_table(console, title, columns, rows, less_needed=("epochs",))
    if done := [str(run.folder) for run in runs if run.is_done]:
        console.print(f"To add what is done: python -m reproduce add {shlex.join(done)}", soft_wrap=True)
