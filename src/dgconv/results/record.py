"""A run record: what is kept of a run for good, ``config.json`` and ``metrics.jsonl`` in ``results/RECIPE/seedN``."""

import json
import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from ..analysis.gate_facts import measure_gates
from ..analysis.kept_costs import cost_of
from ..analysis.mac_rules import needs_images
from ..analysis.macs import Convention
from ..analysis.plan import Cost, DataFacts
from ..analysis.run_folder import RunFolder
from ..analysis.summary import summarize
from ..errors import UserError
from ..models.storage import CONFIG, read_config, write_atomically
from ..train.logs import METRICS
from ..train.recipe import Recipe, list_recipes, load_recipe


class Record(RunFolder):
    """A run folder of which only the small files are needed."""

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def epochs_done(self) -> int:
        return min(len(self.metrics), int(self.config.get("epochs_done", 0)))

    @property
    def is_finished(self) -> bool:
        return self.epochs_done == self.recipe.epochs

    @property
    def best_error(self) -> float:
        """The least of all epochs: chosen by the test images, so no fair figure, but the one others quote."""
        return float(min(epoch["test_error"] for epoch in self.metrics))

    @property
    def late_error(self) -> float:
        """The mean over the last fifteenth of the epochs, which change little but the batch norms' running statistics.

        The learning rate is below about a hundredth of what it was: a fair figure, with less noise than the last one.
        """
        late = self.metrics[-math.ceil(self.recipe.epochs / 15) :]
        return fmean(epoch["test_error"] for epoch in late)

    @property
    def seconds(self) -> float | None:
        """Of the whole training; None where it was timed without waiting for the device, as it once was."""
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
        """Of dgconv."""
        return str(self.config.get("dgconv", "not known"))

    @property
    def gates(self) -> dict[str, Any] | None:
        """What was measured of its gates when the record was made, see :mod:`dgconv.analysis.gate_facts`."""
        return self.config.get("measured_gates")

    @cached_property
    def cost(self) -> Cost:
        """Counted; where only the trained network can tell, as measured when the record was made."""
        *_, side = self.input_size
        try:
            counted = cost_of(self.recipe, DataFacts(0, self.num_classes, side))
        except UserError as error:
            raise UserError(f"{self.folder / CONFIG}: {error}") from None
        measured = self.config.get("measured_macs")
        return replace(counted, macs=measured) if measured else counted

    def macs_of_image(self, convention: Convention = "authors") -> float:
        return float(self.cost.macs[convention])


def changes_between(base: Recipe, other: Recipe) -> dict[str, tuple[Any, Any]]:
    """The settings in which two recipes differ, as they are in the one and in the other."""
    before, after = base.settings, other.settings
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def changes_of(recipe: Recipe) -> dict[str, Any]:
    """What was set otherwise than in the recipe of that name. Not the precision, which belongs to the hardware."""
    if recipe.name not in list_recipes():
        return {}
    changes = changes_between(load_recipe(recipe.name), recipe)
    return {name: new for name, (_, new) in changes.items() if name != "precision"}


def as_text(value: Any) -> str:
    """Of a setting."""
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def read_records(results: Path) -> list[Record]:
    """All there are in a results folder, in the order of their names and seeds."""
    folders = [path.parent for path in results.glob(f"*/*/{CONFIG}")]
    records = [Record(folder) for folder in folders]
    return sorted(records, key=lambda record: (record.recipe.run_name.split("_"), record.folder.parent, record.seed))


def add_record(run: Path, results: Path, *, data_dir: str | None = None, unfinished: bool = False) -> Path:
    """Copy the record of a run into a results folder; where it now is.

    Nothing is rounded. Only the folder of the data set is left out. What only the trained network can tell is measured
    and written beside the rest: how dynamic its gates are, and its MACs, where they depend on the images or on what
    was pruned.
    """
    record = Record(run, data_dir)
    if not record.is_finished and not unfinished:
        raise UserError(
            f"{run} is not finished: {record.epochs_done} of {record.recipe.epochs} epochs. "
            f"Go on with 'dgconv train --resume {run}', or add it as it is with --unfinished"
        )
    metrics = (run / METRICS).read_bytes()
    target = _free_place(results, record, metrics)  # before anything is measured, which takes minutes
    config = record.config | {"recipe": record.config["recipe"] | {"data_dir": None}}
    if record.has_weights and (record.recipe.prune or needs_images(record.untrained_model)):
        config["measured_macs"] = summarize(record.model, record.data, error=record.error, pruning_rate=None).macs
    if record.has_weights and record.is_finished and record.is_dynamic:
        config["measured_gates"] = measure_gates(record)
    if (target / CONFIG).exists() and "weights" in (before := read_config(target)):
        config["weights"] = before["weights"]  # published since
    target.mkdir(parents=True, exist_ok=True)
    write_record_config(target, config)
    write_atomically(target / METRICS, metrics)
    return target


def write_record_config(place: Path, config: dict[str, Any]) -> None:
    write_atomically(place / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def place_of(results: Path, recipe: Recipe, *, with_precision: bool = False) -> Path:
    """Where its record belongs: a folder for the recipe and what was changed about it, and in it one for the seed."""
    changes = changes_of(recipe) | ({"precision": recipe.precision} if with_precision else {})
    name = recipe.run_name + "".join(f"+{setting}={as_text(value)}" for setting, value in changes.items())
    if Path(name).name != name:
        raise UserError(f"a run called {name!r} cannot have a folder in {results}; train it under another --name")
    return results / name / f"seed{recipe.seed}"


def _free_place(results: Path, record: Record, metrics: bytes) -> Path:
    """One where nothing is, or this record already, or an earlier state of this very run.

    The first precision a recipe is trained in takes the plain name, another one is named.
    """
    place = place_of(results, record.recipe)
    others = [Record(path.parent) for path in place.parent.glob(f"*/{CONFIG}")]
    if any(other.recipe.precision != record.recipe.precision for other in others):
        place = place_of(results, record.recipe, with_precision=True)
    if not (place / METRICS).exists() or metrics.startswith((place / METRICS).read_bytes()):
        return place
    raise UserError(
        f"{place} holds the record of another run, so {record.folder} was not added. "
        "Remove that one first if this one is to take its place, or train under another --seed or --name"
    )
