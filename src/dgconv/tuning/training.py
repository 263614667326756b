"""The trainings of a tuning: of a new last layer, of the converted network, of a pruned one to compare with."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..data import Data
from ..environment import has_fast_bfloat16
from ..models import ImageClassifier, load_model, save_model
from ..runs import RunFolder
from ..train import Recipe, TimeLimit
from ..train.distributed import rank, started_by_torchrun
from ..train.side_by_side import Watcher
from ..train.tables import Precision, TrainingTable
from . import steps
from .goal import State
from .network import plain
from .planning import Plan
from .result import Tell

ORIGINAL, HEAD = "original", "head"
START = "start.safetensors"
SHARE_OF_HEAD = 0.3  # of the time, for a new last layer
LEAST_LIMIT = 5.0  # seconds of training, however little time is left

Watch = Callable[[int], Watcher | None]  # who follows a training of so many epochs


class Training:
    """What trains, and how much of the time there is for it."""

    def __init__(
        self, state: State, data: Data, device: torch.device, notes: list[str], watch: Watch, tell: Tell
    ) -> None:
        self.state, self.data, self.device, self.notes = state, data, device, notes
        self.watch, self.tell = watch, tell
        self.goal, self.folder = state.request.goal, state.folder
        self.began = time.monotonic()

    def left(self) -> float:
        """Seconds."""
        return 60 * self.goal.time - (time.monotonic() - self.began)

    def train_head(self) -> None:
        """A new last layer is trained, with all the rest, before anything is decided."""
        original = load_model(self.folder / ORIGINAL)
        settings = self.state.step("head", lambda: self._settle_head(original))
        recipe = self._recipe(original, "head", {}, settings, teacher=False)
        if not self.state.done.get("head done"):
            limit = TimeLimit(max(LEAST_LIMIT, SHARE_OF_HEAD * self.left()) / 60)
            self.tell(f"the new last layer is trained: {settings['epochs']} epochs")
            self._train_until(recipe, self.folder / HEAD, limit)
            if rank() == 0:
                trained = load_model(self.folder / HEAD) if RunFolder(self.folder / HEAD).has_config else original
                save_model(trained, self.folder / ORIGINAL, input_size=self.data.input_size, classes=self.data.classes)
            self.state.step("head done", lambda: True)

    def _settle_head(self, original: ImageClassifier) -> dict[str, Any]:
        settings = {"batch_size": self._batch_size(), "epochs": 1}
        batch, seconds = self._timed_batch(original, "head", {}, settings, teacher=False)
        an_epoch = self._steps(batch) * seconds
        epochs = int(SHARE_OF_HEAD * self.left() / max(an_epoch, 1e-3))
        return {"batch_size": batch, "epochs": max(1, min(self.goal.epochs or 10, epochs)), "seconds": an_epoch}

    def settle(self, original: ImageClassifier, plan: Plan, before: dict[str, Any]) -> dict[str, Any]:
        """How many epochs fit into the time, and how many images a step into the memory."""
        if not plan.is_worth_it:
            return {}
        settings = {"batch_size": self._batch_size(), "epochs": self.goal.epochs or 1}
        if started_by_torchrun():
            return settings | {"seconds": 0.0}
        self.tell("timing a few steps of the training")
        batch, seconds = self._timed_batch(original, "tuned", self.options(original, plan), settings, teacher=True)
        an_epoch = self._steps(batch) * seconds + before["evaluation_seconds"]
        epochs = max(1, min(steps.MOST_EPOCHS, int((self.left() - self._reserve(before)) / max(an_epoch, 1e-3))))
        if self.goal.epochs is None and epochs < 3:
            self.notes.append(
                f"there is time for {epochs} epoch{'s' * (epochs > 1)} only, of {an_epoch:.0f} seconds each"
            )
        chosen = self.goal.epochs or epochs
        return {"batch_size": batch, "epochs": chosen, "seconds": chosen * an_epoch, "seconds_a_step": seconds}

    def _reserve(self, before: dict[str, Any]) -> float:
        """Seconds that what comes after the training will take."""
        of_static = 0.5 * self.left() if self.goal.against else 0.0
        return float(1.5 * before["measuring_seconds"] + 6 * before["evaluation_seconds"]) + of_static

    def _batch_size(self) -> int:
        return min(self.goal.batch_size, len(self.data.train))

    def _steps(self, batch_size: int) -> int:
        return max(1, len(self.data.train) // batch_size)

    def _timed_batch(
        self, original: ImageClassifier, name: str, options: dict[str, Any], settings: dict[str, Any], *, teacher: bool
    ) -> tuple[int, float]:
        def try_it(batch_size: int) -> float:
            recipe = self._recipe(original, name, options, settings | {"batch_size": batch_size}, teacher=teacher)
            return steps.seconds_a_step(recipe, self.data, self.device)

        return steps.fitting_batch(try_it, settings["batch_size"], self.notes)

    def options(self, original: ImageClassifier, plan: Plan) -> dict[str, Any]:
        """What becomes of the layers, by their names in our network."""
        before = "" if plain(original) is original else "network."
        return {"converted": {before + name: options for name, options in plan.converted.items()}}

    def _recipe(
        self, original: ImageClassifier, name: str, options: dict[str, Any], settings: dict[str, Any], *, teacher: bool
    ) -> Recipe:
        start = (self.folder / f"{name}-{START}").absolute()
        source = self.folder.absolute() / ORIGINAL
        training = TrainingTable(
            init_from=str(start),
            epochs=settings["epochs"],
            batch_size=settings["batch_size"],
            learning_rate=self.goal.learning_rate,
            distillation_weight=self.goal.distillation_weight,
            teacher=str(source) if teacher else None,
            ramp_end=steps.RAMP_END,
            precision=self.state.step("precision", self._choose_precision),
            seed=self.goal.seed,
        )
        recipe = steps.recipe_of(original, self.state.request.data, name, options, training)
        classes = len(self.data.classes)
        self.state.step(f"start of {name}", lambda: steps.write_start(original, recipe, classes, start))
        return recipe

    def _choose_precision(self) -> Precision:
        return self.goal.precision or ("bfloat16" if has_fast_bfloat16(self.device) else "float32")

    def train(self, original: ImageClassifier, name: str, options: dict[str, Any], folder: Path, share: float) -> bool:
        """With fewer images a step where memory is short after all. False if there was no time for one epoch."""
        while True:
            settings = self.state.done["settings"]
            recipe = self._recipe(original, name, options, settings, teacher=True)
            limit = TimeLimit(max(LEAST_LIMIT, share * self.left()) / 60)
            try:
                if self._train_until(recipe, folder, limit):
                    return True
            except (MemoryError, RuntimeError) as error:
                if not steps.is_lack_of_memory(error) or settings["batch_size"] == 1:
                    raise
                batch = steps.smaller_batch(settings["batch_size"], self.notes)
                self.state.put("settings", settings | {"batch_size": batch})
                steps.remove(folder)
                continue
            epochs = len(RunFolder(folder).metrics)
            self.notes.append(
                f"the time ended after {epochs} of {settings['epochs']} epochs of {name}"
                + (": it is used as it was then" if epochs else ", before the first one was done")
            )
            return epochs > 0

    def _train_until(self, recipe: Recipe, folder: Path, limit: TimeLimit) -> bool:
        watcher = self.watch(recipe.training.epochs)
        return steps.train_until(recipe, folder, self.data, str(self.device), limit, watcher)
