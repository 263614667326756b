"""The runs of a comparison: one recipe, one folder for each method and seed, and what is there of them already."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..runs import RunFolder
from ..train import FinishedRun, Recipe, train_all
from ..train.side_by_side import Silent, Watcher
from .methods import Rival

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
        return RunFolder(self.folder).has_checkpoint


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
            recipe = Recipe.of(rival.name, model=rival.model_name(backbone), seed=seed, **shared, **chosen)
            run = PlannedRun(rival, chosen, recipe, folder / f"{rival.name}-seed{seed}")
            if run.is_begun:
                _check_same_recipe(run)
            runs.append(run)
    return runs


def train_runs(runs: list[PlannedRun], device: str, watchers: WatcherFor) -> dict[Path, FinishedRun]:
    """Finish what was begun, and begin what was not; what is finished is only evaluated again."""
    jobs = [(run.recipe, run.folder) for run in runs]
    with watchers([run.recipe.training.epochs for run in runs]) as watcher:
        results = train_all(jobs, device=device, watcher=watcher, resuming="begun")
    return {result.folder: result for result in results}


def _check_same_recipe(run: PlannedRun) -> None:
    begun = Recipe.from_dict(RunFolder(run.folder).checkpoint.recipe, str(run.folder))
    if differences := begun.refused_on_resume(run.recipe):
        raise UserError(
            f"{run.folder} holds a run of another recipe: {'; '.join(differences)}. "
            "Name another folder with `out`, or ask for what is there"
        )
