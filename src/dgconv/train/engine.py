"""The training loop: SGD with Nesterov momentum, the three-stage schedule, the losses and the global threshold."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import Data
from ..errors import UserError
from ..layers.select import dynamic_layers
from ..models import ImageClassifier, save_model
from .evaluate import Evaluation, evaluate
from .losses import angle_loss, lasso_loss, take_saliencies
from .recipe import Recipe
from .schedule import cosine_learning_rate, pruning_ramp, set_progress
from .threshold import GlobalThreshold

DEFAULT_ANGLE_WEIGHT = 1e-4  # with the global threshold; head-wise gates turn apart by themselves


@dataclass(frozen=True)
class EpochMetrics:
    """One line of ``metrics.jsonl``. Errors are in percent."""

    epoch: int
    learning_rate: float
    target_pruned_share: float
    train_loss: float
    train_error: float
    test_loss: float
    test_error: float
    pruned_share: float | None
    threshold: float | None
    seconds: float


@dataclass(frozen=True)
class Result:
    model: ImageClassifier
    data: Data
    evaluation: Evaluation
    folder: Path


OnStep = Callable[[int, int, float], None]  # epoch, steps done in all, loss
OnEpoch = Callable[[EpochMetrics], None]


def train(
    recipe: Recipe,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    on_start: Callable[[int], None] = lambda steps: None,
    on_step: OnStep = lambda epoch, step, loss: None,
    on_epoch: OnEpoch = lambda metrics: None,
) -> Result:
    """Train by a recipe into a new run folder: ``config.json``, ``metrics.jsonl``, ``model.safetensors``.

    The model is written after every epoch, so a run that is stopped leaves its last whole epoch.
    The callbacks are for a display: ``on_start`` gets the number of steps.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} exists and is not empty; name another folder with --out")
    torch.manual_seed(recipe.seed)
    data = recipe.load_data()
    model = recipe.build_model(len(data.classes)).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on CPUs and GPUs alike
    trainer = _Trainer(recipe, model, data, device)
    folder.mkdir(parents=True, exist_ok=True)
    on_start(trainer.steps_per_epoch * recipe.epochs)
    for epoch in range(recipe.epochs):
        metrics = trainer.run_epoch(epoch, on_step)
        if not math.isfinite(metrics.train_loss):
            raise UserError(
                f"training diverged: the loss is {metrics.train_loss} in epoch {epoch + 1}. "
                f"Lower --learning-rate (now {recipe.learning_rate})"
            )
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(asdict(metrics)) + "\n")
        save_model(folder, model, recipe=recipe.to_dict(), input_size=data.input_size, epochs_done=epoch + 1)
        on_epoch(metrics)
    model.eval()
    return Result(model, data, trainer.evaluation, folder)


class _Trainer:
    """The state of one run, and one epoch of it."""

    def __init__(self, recipe: Recipe, model: nn.Module, data: Data, device: torch.device | str) -> None:
        self.recipe, self.model, self.data, self.device = recipe, model, data, device
        self.optimizer = torch.optim.SGD(
            model.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.momentum > 0,
        )
        self.threshold = GlobalThreshold(model, recipe.epochs, recipe.threshold_batches, recipe.threshold_every)
        self.angle_weight = recipe.angle_weight
        if self.angle_weight is None:
            self.angle_weight = DEFAULT_ANGLE_WEIGHT if self.threshold else 0.0
        self.shuffle = torch.Generator().manual_seed(recipe.seed)
        self.steps_per_epoch = max(1, len(data.train) // recipe.batch_size)
        self.evaluation: Evaluation

    def run_epoch(self, epoch: int, on_step: OnStep) -> EpochMetrics:
        start = time.perf_counter()
        self.model.train()
        seen = 0
        loss_sum = torch.zeros((), device=self.device)
        wrong = torch.zeros((), device=self.device)
        batches = self.data.train.batches(
            self.recipe.batch_size, train=True, generator=self.shuffle, device=self.device
        )
        for index, (x, target) in enumerate(batches):
            step = epoch * self.steps_per_epoch + index
            loss, logits, saliencies = self._step(x, target, step / (self.steps_per_epoch * self.recipe.epochs))
            if self.threshold.wants(epoch, index, self.steps_per_epoch):
                self.threshold.add(saliencies)
            seen += len(target)
            loss_sum += loss * len(target)
            wrong += (logits.argmax(1) != target).sum()
            on_step(epoch, step + 1, float(loss))
        progress = (epoch + 1) / self.recipe.epochs
        set_progress(self.model, progress)
        threshold = self.threshold.update(progress)
        self.evaluation = evaluate(self.model, self.data.test, device=self.device)
        return EpochMetrics(
            epoch=epoch + 1,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            target_pruned_share=self._target() * pruning_ramp(progress),
            train_loss=float(loss_sum) / seen,
            train_error=100 * float(wrong) / seen,
            test_loss=self.evaluation.loss,
            test_error=self.evaluation.error,
            pruned_share=self.evaluation.pruned_share,
            threshold=threshold,
            seconds=time.perf_counter() - start,
        )

    def _step(self, x: Tensor, target: Tensor, progress: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        for group in self.optimizer.param_groups:
            group["lr"] = cosine_learning_rate(self.recipe.learning_rate, progress)
        set_progress(self.model, progress)
        logits = self.model(x.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits, target)
        saliencies = take_saliencies(self.model)
        total = loss
        if saliencies and self.recipe.lasso_weight:
            total = total + self.recipe.lasso_weight * lasso_loss(saliencies, self.recipe.lasso)
        if saliencies and self.angle_weight:
            total = total + self.angle_weight * angle_loss(saliencies)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        self.optimizer.step()
        return loss.detach(), logits.detach(), [saliency.detach() for saliency in saliencies]

    def _target(self) -> float:
        rates = [layer.pruning_rate for _, layer in dynamic_layers(self.model)]
        return sum(rates) / len(rates) if rates else 0.0
