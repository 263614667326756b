"""A study: many networks by one recipe, with one teacher, each deployed and measured in float32 and int8.

It is planned in a file, so that its cost is known before it starts: settings that all share, those of a family, and a
point each for what is to be compared. Every network is a run folder; what is there already is used, and what was begun
goes on.
"""

import json
import logging
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from ..data import Data
from ..data.sample import sample
from ..deploy import save
from ..deploy.precision import prepare_as
from ..environment import usable_cores
from ..errors import UserError, unknown_name
from ..files import write_atomically
from ..models import load_model
from ..runs import RunFolder
from ..train import Recipe, train_all
from ..train.evaluate import evaluate
from ..train.side_by_side import Silent, Watcher
from ..train.stop import TimeLimit
from .methods import as_it_runs

log = logging.getLogger(__name__)

TEACHER = "teacher"
DEPLOYED, INT8 = "deployed.json", "int8"  # in a run folder: what was measured, and the network in its fastest form
CALIBRATION_IMAGES = 256
NO_SETTINGS = ("family",)  # of a point


@dataclass(frozen=True)
class Point:
    """A network to compare, by its settings, and the family that it is drawn with."""

    name: str
    family: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Study:
    """What a file plans. ``teacher`` are the settings of the network that all others imitate; empty without one."""

    title: str
    shared: dict[str, Any]
    teacher: dict[str, Any]
    points: dict[str, Point]

    @staticmethod
    def read(file: Path) -> "Study":
        try:
            values = tomllib.loads(file.read_text())
        except OSError as error:
            raise UserError(f"cannot read the study {file}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{file} is no TOML: {error}") from error
        if unknown := values.keys() - {"title", "shared", "teacher", "families", "points"}:
            raise UserError(
                f"{file} has a table {sorted(unknown)[0]!r}; a study has title, shared, teacher, families, points"
            )
        families, points = values.get("families", {}), values.get("points", {})
        if not points:
            raise UserError(f"{file} plans no points; give each a line in [points]")
        return Study(
            str(values.get("title", file.stem)),
            values.get("shared", {}),
            values.get("teacher", {}),
            {name: _point(name, of_point, families, file) for name, of_point in points.items()},
        )

    def only(self, names: Sequence[str]) -> "Study":
        """The same with some of its points; all, if none is named."""
        for name in names:
            if name not in self.points:
                raise unknown_name("point", name, self.points)
        return replace(self, points={name: p for name, p in self.points.items() if not names or name in names})

    def recipe(self, point: Point, seed: int, data_dir: str | None, folder: Path) -> Recipe:
        """How a point is trained; the run of the teacher lies in the folder of all runs."""
        imitates = {"teacher": str(folder / TEACHER)} if self.teacher else {}
        settings = {**self.shared, **imitates, **point.settings}
        if not settings.get("distillation_weight", 1.0):
            settings.pop("teacher", None)
        return Recipe.of(point.name, data_dir=data_dir, seed=seed, **settings)

    def teacher_recipe(self, data_dir: str | None) -> Recipe:
        own = {key: value for key, value in self.shared.items() if not key.startswith("distillation")}
        return Recipe.of(TEACHER, data_dir=data_dir, **(own | self.teacher))


def _point(name: str, values: Mapping[str, Any], families: Mapping[str, Any], file: Path) -> Point:
    if not isinstance(values, dict) or "family" not in values:
        raise UserError(f"the point {name} of {file} must be a table with a family and settings, got {values!r:.80}")
    family = values["family"]
    own = {key: value for key, value in values.items() if key not in NO_SETTINGS}
    return Point(name, family, {**families.get(family, {}), **own})


def run_name(point: str, seed: int) -> str:
    return f"{point}-seed{seed}"


@dataclass(frozen=True)
class StudyRun:
    """A network of a study: its point, seed, recipe and folder."""

    point: Point
    seed: int
    recipe: Recipe
    folder: Path

    @property
    def is_deployed(self) -> bool:
        return (self.folder / DEPLOYED).exists()


def plan_study(study: Study, seeds: Sequence[int], data_dir: str | None, folder: Path) -> list[StudyRun]:
    """All networks, the first seed of each before any second."""
    RunFolder(folder).refuse_for_several()
    return [
        StudyRun(point, seed, study.recipe(point, seed, data_dir, folder), folder / run_name(point.name, seed))
        for seed in seeds
        for point in study.points.values()
    ]


def train_study(
    study: Study,
    runs: Sequence[StudyRun],
    data_dir: str | None,
    folder: Path,
    *,
    device: str = "cpu",
    watcher: Watcher | None = None,
    time_limit: TimeLimit | None = None,
    side_by_side: int | None = None,
) -> None:
    """Trains the teacher, unless it is there, and then all that is missing."""
    watcher = watcher or Silent()
    how: dict[str, Any] = {"device": device, "watcher": watcher, "resuming": "begun", "time_limit": time_limit}
    if study.teacher:
        train_all([(study.teacher_recipe(data_dir), folder / TEACHER)], **how)
    train_all([(run.recipe, run.folder) for run in runs], side_by_side=side_by_side, **how)


def deploy_runs(runs: Iterable[StudyRun], data: Data, workers: int | None = None) -> None:
    """Errors of each trained network as it is deployed, in its folder; of those that have none yet."""
    todo = [run.folder for run in runs if is_trained(run) and not run.is_deployed]
    global _DATA
    _DATA = data  # forked processes have it, too
    with ProcessPoolExecutor(workers or usable_cores(), mp_context=get_context("fork")) as pool:
        for folder, problem in zip(todo, pool.map(_deploy, todo), strict=True):
            if problem:
                log.warning("%s was not deployed: %s", folder, problem)


_DATA: Data | None = None


def is_trained(run: StudyRun) -> bool:
    """Whether it went through all of its epochs, as its log says: the checkpoint may have been taken away since."""
    done = RunFolder(run.folder)
    return done.has_metrics and len(done.metrics) == run.recipe.training.epochs


def _deploy(folder: Path) -> str | None:
    torch.set_num_threads(1)
    try:
        _measure_deployed(folder)
    except Exception as error:  # the others go on
        return f"{type(error).__name__}: {error}"
    return None


@torch.no_grad()
def _measure_deployed(folder: Path) -> None:
    assert _DATA is not None
    network = as_it_runs(load_model(RunFolder(folder)))
    calibration = next(sample(_DATA.train, CALIBRATION_IMAGES))
    found: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in network.parameters())}
    for precision in ("float32", "int8"):
        prepared = prepare_as(network, precision, calibration, freeze="auto")
        found[precision] = evaluate(prepared, _DATA.test).error
        if precision == "int8":
            save(prepared, folder / INT8)
    write_atomically(folder / DEPLOYED, (json.dumps(found, indent=2) + os.linesep).encode())
