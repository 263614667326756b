"""A run record: what is kept of a run for good, its config and metrics, in ``results/RECIPE/CHANGE/seedN``."""

import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from dgconv.analysis.gate_facts import measure_gates
from dgconv.analysis.kept_costs import cost_of
from dgconv.analysis.plan import NetworkCost
from dgconv.analysis.summary import summarize
from dgconv.analysis.trained_run import TrainedRun
from dgconv.cost import Convention, needs_images
from dgconv.data import DataFacts
from dgconv.errors import UserError
from dgconv.models.pretrained import AS_IT_IS
from dgconv.runs import RunFolder
from dgconv.train.recipe import Recipe
from dgconv.train.recipe_files import list_recipes, load_recipe


class Record(TrainedRun):
    """A run folder of which only the small files are needed."""

    @property
    def seed(self) -> int:
        return self.recipe.training.seed

    @property
    def epochs_done(self) -> int:
        return min(len(self.metrics), int(self.config.get("epochs_done", 0)))

    @property
    def is_finished(self) -> bool:
        return self.epochs_done == self.recipe.training.epochs

    @property
    def best_error(self) -> float:
        """The least of all epochs: chosen by the test images, so no fair figure, but the one others quote."""
        return float(min(epoch["test_error"] for epoch in self.metrics))

    @property
    def late_error(self) -> float:
        """The mean over the last fifteenth of the epochs, which change little but the batch norms' running statistics.

        The learning rate is below about a hundredth of what it was: a fair figure, with less noise than the last one.
        """
        late = self.metrics[-math.ceil(self.recipe.training.epochs / 15) :]
        return fmean(epoch["test_error"] for epoch in late)

    @property
    def seconds(self) -> float | None:
        """The seconds of the whole training; None where it was timed without waiting for the device, as it once was."""
        if "first_step_seconds" not in self.metrics[0]:
            return None
        return float(sum(epoch["seconds"] for epoch in self.metrics))

    @property
    def trained_on(self) -> str:
        environment = self.config.get("environment", {})
        if not environment.keys() >= {"hardware", "torch", "date"}:
            return "not known"
        shared = f", {environment['side_by_side']} networks side by side" if "side_by_side" in environment else ""
        return "{hardware}{shared}, torch {torch}, {date}".format(shared=shared, **environment)

    @property
    def version(self) -> str:
        """The version of dgconv."""
        return str(self.config.get("dgconv", "not known"))

    @property
    def gates(self) -> dict[str, Any] | None:
        """What was measured of its gates when the record was made, see :mod:`dgconv.analysis.gate_facts`."""
        return self.config.get("measured_gates")

    @cached_property
    def cost(self) -> NetworkCost:
        """Counted; where only the trained network can tell, as measured when the record was made."""
        *_, side = self.input_size
        try:
            counted = cost_of(self.recipe, DataFacts(0, self.num_classes, side))
        except UserError as error:
            raise UserError(f"{self.files.config_file}: {error}") from None
        measured = self.config.get("measured_macs")
        return replace(counted, macs=measured) if measured else counted

    def macs_of_image(self, convention: Convention = "authors") -> float:
        return float(self.cost.macs[convention])


def changes_of(recipe: Recipe) -> dict[str, Any]:
    """What was set otherwise than in the recipe of that name. Not the precision, which belongs to the hardware."""
    if recipe.name not in list_recipes():
        return {}
    changes = load_recipe(recipe.name).differences(recipe)
    return {name: new for name, (_, new) in changes.items() if name != "precision"}


def as_text(value: Any) -> str:
    """A setting as text."""
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def read_records(results: Path) -> list[Record]:
    """All there are in a results folder, in the order of their names and seeds."""
    folders = [path for path in results.glob("*/*/*") if RunFolder(path).has_config]
    records = [Record(folder) for folder in folders]
    return sorted(records, key=_order)


def _order(record: Record) -> tuple[list[str], bool, str, int]:
    """A recipe as it is comes before what was changed about it."""
    change = record.folder.parent.name
    return record.recipe.run_name.split("_"), change != AS_IT_IS, change, record.seed


def add_record(run: Path, results: Path, *, data_dir: str | None = None, unfinished: bool = False) -> Path:
    """Copy the record of a run into a results folder; where it now is.

    Nothing is rounded. Only the folder of the data set is left out. What only the trained network can tell is measured
    and written beside the rest: how dynamic its gates are, and its MACs, where they depend on the images or on what
    was pruned.
    """
    record = Record(run, data_dir)
    if not record.is_finished and not unfinished:
        raise UserError(
            f"{run} is not finished: {record.epochs_done} of {record.recipe.training.epochs} epochs. "
            "Finish it, or add it as it is with `unfinished`",
            resume=[run],
        )
    metrics = record.files.metrics_bytes
    target = RunFolder(_free_place(results, record, metrics))  # before anything is measured, which takes minutes
    config = record.config | {"recipe": record.recipe.changed(data_dir=None).to_dict()}
    if record.has_weights and (record.recipe.get("prune") or needs_images(record.untrained_model)):
        config["measured_macs"] = summarize(record.model, record.data, error=record.error, pruning_rate=None).macs
    if record.has_weights and record.is_finished and record.is_dynamic:
        config["measured_gates"] = measure_gates(record)
    if target.has_config and "weights" in target.config:
        config["weights"] = target.config["weights"]  # published since
    target.path.mkdir(parents=True, exist_ok=True)
    target.rewrite_config(config)
    target.write_metrics(metrics)
    return target.path


def place_of(results: Path, recipe: Recipe, *, with_precision: bool = False) -> Path:
    """Where its record belongs: a folder for the recipe, in it one for what was changed about it, and one a seed."""
    changes = changes_of(recipe) | ({"precision": recipe.training.precision} if with_precision else {})
    change = "+".join(f"{setting}={as_text(value)}" for setting, value in changes.items()) or AS_IT_IS
    for name in (recipe.run_name, change):
        if Path(name).name != name:
            raise UserError(f"a run called {name!r} cannot have a folder in {results}; train it under another `name`")
    return results / recipe.run_name / change / f"seed{recipe.training.seed}"


def _free_place(results: Path, record: Record, metrics: bytes) -> Path:
    """One where nothing is, or this record already, or an earlier state of this very run.

    The first precision a recipe is trained in takes the plain name, another one is named.
    """
    place = place_of(results, record.recipe)
    others = [Record(path) for path in place.parent.glob("*") if RunFolder(path).has_config]
    if any(other.recipe.training.precision != record.recipe.training.precision for other in others):
        place = place_of(results, record.recipe, with_precision=True)
    there = RunFolder(place)
    if not there.has_metrics or metrics.startswith(there.metrics_bytes):
        return place
    raise UserError(
        f"{place} holds the record of another run, so {record.folder} was not added. "
        "Remove that one first if this one is to take its place, or train under another `seed` or `name`"
    )
