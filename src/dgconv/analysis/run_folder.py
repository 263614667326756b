"""A run folder as something to look at: its parts are read, or measured, when they are first asked for."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ..data import Data
from ..data.load import refuse_unused_folder
from ..errors import UserError, unknown_name
from ..layers import DynamicGroupConv2d, GlobalGate
from ..layers.select import dynamic_layers
from ..models import ImageClassifier, load_model
from ..models.pretrained import find_run
from ..models.storage import CONFIG, create_from_file, read_config, weights_file
from ..pruning import what_is_left
from ..train.classes import load_data_of_run
from ..train.evaluate import Evaluation, evaluate
from ..train.logs import read_metrics
from ..train.recipe import Recipe
from .budget import Pass, run_at_rate
from .mac_rules import needs_images
from .macs import Convention, MacCount, count_macs
from .rate import calibration_images
from .record import Recording, record_run
from .summary import images_to_measure


class RunFolder:
    """One run. Without weights, what needs only its recipe and metrics still works.

    Args:
        folder: what ``dgconv train`` wrote.
        data_dir: folder of the data set, if it has moved.
        examples: images recorded one by one.
    """

    def __init__(
        self, folder: Path | str, data_dir: str | None = None, device: torch.device | str = "cpu", examples: int = 256
    ) -> None:
        self.folder, self.data_dir, self.device, self.examples = Path(folder), data_dir, device, examples
        self.config: dict[str, Any] = read_config(self.folder)
        if "model" not in self.config:
            raise UserError(f"{self.folder}: its config.json names no model, so it is not a run folder")
        self._passes: dict[float, Pass] = {}

    @property
    def name(self) -> str:
        return self.recipe.run_name if "recipe" in self.config else str(self.config["model"]["name"])

    @cached_property
    def recipe(self) -> Recipe:
        recipe = Recipe.of_run(self.folder)
        if recipe is None:
            raise UserError(f"{self.folder} was not trained here, so neither its recipe nor its data set is known")
        return recipe

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """A line of ``metrics.jsonl`` an epoch."""
        metrics = read_metrics(self.folder)
        if not metrics:
            raise UserError(f"{self.folder} has no metrics.jsonl, or an empty one: no epoch of it is known")
        return metrics

    @property
    def task(self) -> str:
        """Its data set and image size: what errors can be compared within."""
        return f"{self.recipe.data}, {self.input_size[-1]} px"

    @property
    def input_size(self) -> tuple[int, ...]:
        return tuple(self.config.get("input_size") or self.untrained_model.input_size)

    @property
    def num_classes(self) -> int:
        return self.config["model"].get("num_classes") or self.untrained_model.num_classes

    @cached_property
    def untrained_model(self) -> ImageClassifier:
        """The network without its weights, to look at its layers."""
        return create_from_file(self.config["model"], self.folder / CONFIG)

    @property
    def has_weights(self) -> bool:
        return weights_file(self.folder, self.config).is_file()

    @cached_property
    def model(self) -> ImageClassifier:
        return load_model(self.folder, self.device)

    @cached_property
    def data(self) -> Data:
        return load_data_of_run(self.folder, self.recipe, self.data_dir)

    @property
    def is_dynamic(self) -> bool:
        return any(True for _ in dynamic_layers(self.untrained_model))

    @property
    def has_global_gate(self) -> bool:
        return any(isinstance(layer.gate, GlobalGate) for _, layer in dynamic_layers(self.untrained_model))

    @cached_property
    def recorded(self) -> tuple[Recording, Evaluation]:
        """Every test image, once."""
        return record_run(
            self.model, self.data.test, device=self.device, examples=self.examples, classes=len(self.data.classes)
        )

    @property
    def recording(self) -> Recording:
        return self.recorded[0]

    @cached_property
    def error(self) -> float:
        """On the test images, in percent: as the run wrote down after its last epoch, or measured now."""
        if metrics := read_metrics(self.folder):
            return float(metrics[-1]["test_error"])
        return evaluate(self.model, self.data.test, device=self.device).error

    @property
    def _dynamic_layers(self) -> dict[str, DynamicGroupConv2d]:
        layers = dict(dynamic_layers(self.untrained_model))
        if not layers:
            raise UserError(f"needs dynamic layers, and {self.name} has none")
        return layers

    @property
    def trained_rate(self) -> float:
        """To the last bit where all layers have the same: at any other rate, batch norms are measured anew."""
        rates = [layer.pruning_rate for layer in self._dynamic_layers.values()]
        return rates[0] if len(set(rates)) == 1 else fmean(rates)

    @property
    def heads(self) -> int:
        return next(iter(self._dynamic_layers.values())).heads

    def pick_layer(self, name: str | None, depth: float) -> str:
        """A dynamic layer by name, or the one at a share of the depth."""
        names = list(self._dynamic_layers)
        if name is not None and name not in names:
            raise unknown_name("dynamic layer", name, names)
        return name or names[min(int(depth * len(names)), len(names) - 1)]

    def macs(self, convention: Convention = "authors") -> MacCount:
        """Of one image, in the network as it runs: cut where filters are pruned, its groups those that it has learned,
        measured on images where the cost depends on them. Without weights, what the options tell."""
        if not self.has_weights:
            return count_macs(self.untrained_model.eval(), self.input_size, convention)
        images = images_to_measure(self.model, self.data, self.device) if needs_images(self.model) else None
        return count_macs(what_is_left(self.model), self.input_size, convention, images)

    def macs_of_image(self, convention: Convention = "authors") -> float:
        return self.macs(convention).macs

    def pass_at(self, rate: float) -> Pass:
        """All test images at a pruning rate, which needs no training."""
        if rate not in self._passes:
            images = calibration_images(self.data.train, self.device)
            self._passes[rate] = run_at_rate(self.model, self.data.test, rate, images, device=self.device)
        return self._passes[rate]


def open_runs(
    folders: Sequence[Path], data_dir: str | None = None, device: torch.device | str = "cpu", examples: int = 256
) -> list[RunFolder]:
    """At least one, and with enough examples to compare."""
    if not folders:
        raise UserError("name at least one run folder")
    if examples < 2:
        raise UserError(f"examples must be at least 2, got {examples}")
    runs = [RunFolder(find_run(folder), data_dir, device, examples) for folder in folders]
    refuse_unused_folder(data_dir, [run.recipe.data for run in runs if "recipe" in run.config])
    return runs
