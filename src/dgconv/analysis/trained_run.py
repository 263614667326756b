"""A trained run as something to look at: its parts are read, or measured, when they are first asked for."""

import copy
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ..cost import Convention, MacCount, count_macs, needs_images
from ..data import Data
from ..data.load import refuse_unused_folder
from ..errors import UserError, unknown_name
from ..layers import DynamicGroupConv2d
from ..layers.select import dynamic_layers
from ..models import ImageClassifier, load_model
from ..models.pretrained import find_run
from ..models.storage import build_from_run
from ..pruning import what_is_left
from ..runs import RunFolder
from ..train.classes import load_data_of_run
from ..train.evaluate import Evaluation, evaluate
from ..train.recipe import Recipe
from .budget import Pass, run_at_rate
from .rate import calibration_images
from .recording import Recording, record_run
from .summary import images_to_measure


class TrainedRun:
    """One run. Without weights, what needs only its recipe and metrics still works.

    Args:
        run: the folder that ``dgconv train`` wrote.
        data_dir: folder of the data set, if it has moved.
        examples: images recorded one by one.
    """

    def __init__(
        self,
        run: RunFolder | Path | str,
        data_dir: str | None = None,
        device: torch.device | str = "cpu",
        examples: int = 256,
    ) -> None:
        self.files = run if isinstance(run, RunFolder) else RunFolder(run)
        self.data_dir, self.device, self.examples = data_dir, device, examples
        if "model" not in self.config:
            raise UserError(f"{self.files.config_file} names no model, so {self.folder} is not a run folder")
        self._passes: dict[float, Pass] = {}

    @property
    def folder(self) -> Path:
        return self.files.path

    @property
    def config(self) -> dict[str, Any]:
        return self.files.config

    @property
    def name(self) -> str:
        return self.recipe.run_name if "recipe" in self.config else str(self.config["model"]["name"])

    @cached_property
    def recipe(self) -> Recipe:
        recipe = Recipe.of_run(self.files)
        if recipe is None:
            raise UserError(f"{self.folder} was not trained here, so neither its recipe nor its data set is known")
        return recipe

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every epoch, one at least."""
        if not self.files.metrics:
            raise UserError(f"{self.folder} has no metrics, or an empty file of them: no epoch of it is known")
        return self.files.metrics

    @property
    def task(self) -> str:
        """Its data set and image size: what errors can be compared within."""
        return f"{self.recipe.data.name}, {self.input_size[-1]} px"

    @property
    def input_size(self) -> tuple[int, ...]:
        return tuple(self.config.get("input_size") or self.untrained_model.input_size)

    @property
    def num_classes(self) -> int:
        return self.config["model"].get("num_classes") or self.untrained_model.num_classes

    @cached_property
    def untrained_model(self) -> ImageClassifier:
        """The network without its weights, to look at its layers."""
        return build_from_run(self.files)

    @property
    def has_weights(self) -> bool:
        return self.files.has_weights

    @cached_property
    def model(self) -> ImageClassifier:
        return load_model(self.files, self.device)

    @cached_property
    def model_on_cpu(self) -> ImageClassifier:
        """The same network, to be timed there."""
        return self.model if torch.device(self.device).type == "cpu" else copy.deepcopy(self.model).cpu()

    @cached_property
    def data(self) -> Data:
        return load_data_of_run(self.files, self.recipe, self.data_dir)

    @property
    def is_dynamic(self) -> bool:
        return any(True for _ in dynamic_layers(self.untrained_model))

    @property
    def has_global_gate(self) -> bool:
        return any(layer.gate.shared_threshold is not None for _, layer in dynamic_layers(self.untrained_model))

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
        """The error on the test images, in percent: as the run wrote down after its last epoch, or measured now."""
        if metrics := self.files.metrics:
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
        """The rate it was trained at, to the last bit where all layers have the same: at any other rate, batch norms
        are measured anew."""
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
        """The cost of one image in the network as it runs: cut where filters are pruned, with the groups that it has
        learned, measured on images where the cost depends on them. Without weights, what the options tell."""
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
) -> list[TrainedRun]:
    """Opens runs, at least one, with enough examples to compare."""
    if not folders:
        raise UserError("name at least one run folder")
    if examples < 2:
        raise UserError(f"`examples` must be at least 2, got {examples}")
    runs = [TrainedRun(find_run(folder), data_dir, device, examples) for folder in folders]
    if trained_here := [run.recipe.data.name for run in runs if "recipe" in run.config]:
        refuse_unused_folder(data_dir, trained_here)
    return runs
