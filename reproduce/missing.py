"""The runs that the result pages still miss, and what there is of them already, to be trained in several sittings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from dgconv.data import find_data
from dgconv.errors import UserError
from dgconv.models.pretrained import AS_IT_IS
from dgconv.runs import RunFolder
from dgconv.train import Recipe

from .groups import Group
from .record import Record, place_of
from .wanted import PRECISION, missing_runs


@dataclass(frozen=True)
class MissingRun:
    """One run without a record, and the folder that is or will be its own."""

    recipe: Recipe
    folder: Path

    @property
    def is_begun(self) -> bool:
        return RunFolder(self.folder).has_checkpoint

    @cached_property
    def epochs_done(self) -> int:
        if not RunFolder(self.folder).has_config:
            return 0
        record = Record(self.folder)
        if changes := self.recipe.differences(record.recipe):
            what = "; ".join(f"{name} is {found!r}, not {wanted!r}" for name, (wanted, found) in changes.items())
            raise UserError(
                f"{self.folder} holds a run of another recipe: {what}. Move it away, or name another folder with `out`"
            )
        return record.epochs_done

    @property
    def is_done(self) -> bool:
        """Whether only its record is missing."""
        return self.epochs_done == self.recipe.training.epochs

    @property
    def state(self) -> str:
        if self.is_done:
            return "done, to be added"
        return f"at epoch {self.epochs_done} of {self.recipe.training.epochs}" if self.is_begun else "not begun"

    def to_dict(self) -> dict[str, Any]:
        return {"run": str(self.folder), "epochs_done": self.epochs_done, "recipe": self.recipe.to_dict()}


def plan(groups: list[Group], patterns: Sequence[str], folder: Path) -> list[MissingRun]:
    """The missing runs whose recipes match one of the shell patterns, if there is any; what was begun comes first."""
    wanted = [
        recipe
        for recipe in missing_runs(groups)
        if not patterns or any(fnmatch(recipe.name, pattern) for pattern in patterns)
    ]
    runs = [MissingRun(recipe, folder / _folder_name(recipe)) for recipe in wanted]
    return sorted(runs, key=lambda run: not run.is_begun)


def with_data(runs: list[MissingRun], data_dir: Path) -> list[MissingRun]:
    """Each data set has a folder of its name in ``data_dir``."""
    data_dir = data_dir.expanduser()
    names = {_data_folder(run.recipe) for run in runs if find_data(run.recipe.data.name).needs}
    if lacking := sorted(name for name in names if not (data_dir / name).is_dir()):
        raise UserError(
            f"{data_dir} must hold a folder for each data set, and has none called {' or '.join(lacking)}. "
            "Name another `data_dir`, or only recipes of the others, such as 'cifar10_*'"
        )
    return [
        replace(run, recipe=run.recipe.changed(data_dir=str(data_dir / _data_folder(run.recipe))))
        if _data_folder(run.recipe) in names
        else run
        for run in runs
    ]


def _data_folder(recipe: Recipe) -> str:
    """What the folder of its data set is called; recipes for ImageNet take folders of images."""
    return "imagenet" if recipe.data.name == "folder" else recipe.data.name


def _folder_name(recipe: Recipe) -> str:
    """Like its place among the records, but never that of another run."""
    place = place_of(Path(), recipe, with_precision=recipe.training.precision != PRECISION)
    return "-".join(part for part in place.parts[-3:] if part != AS_IT_IS)
