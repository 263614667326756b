"""The runs of a comparison: one recipe, one folder for each method and seed, and what is there of them already."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..models.storage import CONFIG, WEIGHTS
from ..train import Recipe, Result, train_all
from ..train.checkpoint import CHECKPOINT, load_checkpoint, recipe_differences
from ..train.folder_lock import content_of, locked
from ..train.logs import METRICS
from ..train.run_state import BEST
from ..train.side_by_side import Silent, Watcher
from .methods import Rival

WRITTEN_BY_RUNS = {METRICS, "tensorboard", CONFIG, WEIGHTS, BEST, "diverged.safetensors"}
WatcherFor = Callable[[list[int]], AbstractContextManager[Watcher]]  # of runs with these numbers of epochs


def unwatched(epochs: list[int]) -> AbstractContextManager[Watcher]:
    return nullcontext(Silent())


@dataclass(frozen=True)
class PlannedRun:
    rival: Rival
    options: dict[str, Any]  # of the recipe, chosen for the budget
    recipe: Recipe
    folder: Path

    @property
    def is_begun(self) -> bool:
        return (self.folder / CHECKPOINT).exists()


def plan_runs(
    rivals: list[Rival],
    options: dict[str, dict[str, Any]],
    seeds: tuple[int, ...],
    folder: Path,
    backbone: str,
    shared: dict[str, Any],
) -> list[PlannedRun]:
    """A run for each method and seed; the recipes differ in the method alone.

    A run in ``folder`` that was begun with another recipe is refused: its figures would not belong into this table.

    Args:
        options: of each method, from :func:`~dgconv.compare.options_for_budget`.
        shared: fields of all recipes.
    """
    runs = []
    for rival in rivals:
        for seed in seeds:
            chosen = options[rival.name]
            recipe = Recipe(name=rival.name, model=rival.model_name(backbone), seed=seed, **shared, **chosen)
            run = PlannedRun(rival, chosen, recipe, folder / f"{rival.name}-seed{seed}")
            if run.is_begun:
                _check_same_recipe(run)
            runs.append(run)
    return runs


def train_runs(runs: list[PlannedRun], device: str, watchers: WatcherFor) -> dict[Path, Result]:
    """Finish what was begun, then begin what was not; what is finished is only evaluated again."""
    results: dict[Path, Result] = {}
    for resuming in (True, False):
        chosen = [run for run in runs if run.is_begun == resuming and run.folder not in results]
        if not chosen:
            continue
        for run in chosen:
            if not resuming:
                _clear(run.folder)
        with watchers([run.recipe.epochs for run in chosen]) as watcher:
            jobs = [(run.recipe, run.folder) for run in chosen]
            for result in train_all(jobs, device=device, watcher=watcher, resuming=resuming):
                results[result.folder] = result
    return results


def _check_same_recipe(run: PlannedRun) -> None:
    differences = recipe_differences(load_checkpoint(run.folder).recipe, run.recipe.to_dict())
    if differences:
        raise UserError(
            f"{run.folder} holds a run of another recipe: {'; '.join(differences)}. "
            "Name another folder with --out, or ask for what is there"
        )


def _clear(folder: Path) -> None:
    """Leftovers of a run that ended before its first checkpoint; of anything else train_all says that it is there."""
    if not folder.is_dir():
        return
    with locked([folder]):  # the run may be under way
        content = content_of(folder)
        if all(entry.name in WRITTEN_BY_RUNS or entry.name.startswith(".") for entry in content):
            for entry in content:
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
