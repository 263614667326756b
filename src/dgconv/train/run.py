"""One network under training: its state, its steps and its epochs, on a CPU, a GPU or a share of several."""

import logging
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..data import Data
from ..environment import describe_environment
from ..errors import UserError
from ..layers.controller import Place
from ..layers.saliency import passing_overflow
from ..layers.select import dynamic_layers
from ..models.storage import snapshot
from ..ops.overlap import overlapping
from ..runs import Checkpoint, EpochMetrics, Position, RunFolder, RunLog
from ..runs.checkpoint import save_checkpoint
from .beginning import (
    build_model,
    examples_of,
    images_to_measure,
    memory_format_of,
    refuse_uneven_shares,
    teacher_of,
)
from .controllers import controllers_of
from .diagnose import Diverged, first_bad_layer
from .distributed import any_rank, rank, sum_over_ranks, synchronize_batch_norm, world_size
from .evaluate import Evaluation, Evaluator
from .graphs import CapturedCall
from .losses import take_saliencies
from .mac_budget import MacBudget
from .metrics import EVALUATING, EpochEnd, Evaluating
from .optimizer import make_optimizer, momenta
from .recipe import Recipe
from .run_state import put_back_lost_files, restore, take_checkpoint, write_epoch
from .schedule import cosine_learning_rate, pruning_ramp
from .writer import BackgroundWriter

log = logging.getLogger(__name__)


class Run:
    """Trains one network by one recipe into one folder, from the beginning or from a checkpoint."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        data: Data,
        device: torch.device,
        resume_from: Checkpoint | None = None,
        side_by_side: int = 1,
    ) -> None:
        refuse_uneven_shares(recipe, data)
        self.recipe, self.folder, self.data, self.device = recipe, folder, data, device
        self.training = training = recipe.training
        torch.manual_seed(training.seed)
        self.model = build_model(recipe, data, is_resumed=resume_from is not None).to(device)
        self.memory_format = memory_format_of(self.model, device, training.autocast_dtype)
        self.forward: nn.Module = self.model
        if world_size() > 1:
            synchronize_batch_norm(self.model)
            self.forward = DistributedDataParallel(self.model)
        else:
            self.model.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        if training.compile:
            self.forward = torch.compile(self.forward)  # type: ignore[assignment]
        self.steps_per_epoch = max(1, len(data.train) // training.batch_size)
        self.optimizer = make_optimizer(self.model, training, device, self.steps_per_epoch * training.epochs)
        images = partial(images_to_measure, data, device)  # which does not hold the run
        examples = partial(examples_of, data, device)
        self.controllers = controllers_of(
            self.model,
            training,
            input_size=data.input_size,
            images=images,
            examples=examples,
            teacher=teacher_of(recipe, data, device),
        )
        for member in self.controllers.members:
            if isinstance(member, MacBudget):
                member.look_ahead(data.input_size)
        self.evaluator = Evaluator(self.model, device, training.autocast_dtype, self.memory_format)
        self.evaluation: Evaluation
        self.position = Position()
        self.epoch_started = 0.0
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)  # of the epoch: loss, wrong answers, skipped
        self.writer = BackgroundWriter()
        self.environment = describe_environment(device)
        self.side_by_side = side_by_side
        if side_by_side > 1:  # networks that share the device, without which the time of a run says little
            self.environment["side_by_side"] = side_by_side
        self.first_step_seconds: float | None = None
        self.in_first_epoch = True  # since this start
        self.captured: CapturedCall | None = None
        self.batch: tuple[Tensor, Tensor] | None = None
        if resume_from:
            restore(self, resume_from)
        self.log = RunLog(folder, epochs_done=self.position.epoch) if rank() == 0 else None

    # -- the loop ------------------------------------------------------------------------------------------------

    def advance(self) -> Iterator[EpochMetrics | Evaluating | None]:
        """The whole run, or what is left of it: yields None after each step and the metrics after each epoch.

        A network that is trained beside others yields ``EVALUATING`` before them; then nothing may be saved.
        """
        if self.position.epoch == self.training.epochs:  # resumed after its end
            self.evaluation = self.evaluator(self.data.test)
            put_back_lost_files(self)
        while self.position.epoch < self.training.epochs:
            yield from self._epoch()
        self.writer.wait()
        if self.evaluation.overflow and rank() == 0:
            log.warning("%s: %s", self.folder, self.evaluation.overflow)
        self.model.eval()
        self.model.zero_grad(set_to_none=True)  # on a GPU they lie in the memory of the graph, and would hold it

    def _epoch(self) -> Iterator[EpochMetrics | Evaluating | None]:
        position, training = self.position, self.training
        self.epoch_started = time.perf_counter() - position.seconds
        batches = self.data.train.batches(
            training.batch_size,
            train=True,
            generator=torch.Generator().manual_seed(training.seed * 1_000_003 + position.epoch),
            device=self.device,
            start=position.step,
            shard=(rank(), world_size()),
            on_skip=self._count_skipped,
        )
        self.model.train()
        for batch in batches:
            self._schedule(self._progress())
            saliencies = self._step(*batch) if self.first_step_seconds is not None else self._first_step(*batch)
            self.controllers.after_step(saliencies, Place(position.epoch, position.step, self.steps_per_epoch))
            position.step += 1
            position.seen += len(batch[1]) * world_size()
            position.seconds = time.perf_counter() - self.epoch_started
            yield None
        end = self._end_training()
        if self.side_by_side > 1:
            yield EVALUATING  # the others queue their evaluations before anybody waits for one
        yield self._finish_epoch(end)

    def _end_training(self) -> EpochEnd:
        """Everything that belongs to the epoch's training, and the evaluation begun."""
        self.check_finite()  # waits until the device has done all steps, which so far were only queued
        trained = time.perf_counter() - self.epoch_started
        loss_sum, wrong, skipped = sum_over_ranks(self.sums.clone()).tolist()
        progress = (self.position.epoch + 1) / self.training.epochs
        self.controllers.before_step(progress)
        started = time.perf_counter()
        with passing_overflow():
            threshold = self.controllers.end_epoch(progress)
        evaluation = self.evaluator.begin(self.data.test)
        return EpochEnd(progress, loss_sum, wrong, int(skipped), threshold, trained, started, evaluation)

    def _finish_epoch(self, end: EpochEnd) -> EpochMetrics:
        position, training = self.position, self.training
        self.evaluation = end.evaluation()
        metrics = EpochMetrics(
            epoch=position.epoch + 1,
            learning_rate=cosine_learning_rate(training.learning_rate, self._progress(-1)),
            target_pruned_share=self._target_rate() * pruning_ramp(end.progress, training.ramp_end),
            train_loss=end.loss_sum / position.seen,
            train_error=100 * end.wrong / position.seen,
            test_loss=self.evaluation.loss,
            test_error=self.evaluation.error,
            test_error_top5=self.evaluation.error_top5,
            pruned_share=self.evaluation.pruned_share,
            threshold=end.threshold,
            images_per_second=position.seen / end.trained,
            seconds=end.trained + time.perf_counter() - end.started,
            skipped_images=end.skipped + self.evaluation.skipped if self.recipe.data.skip_corrupt_images else None,
            overflowing_images=len(self.evaluation.overflowing),
            first_step_seconds=self.first_step_seconds if self.in_first_epoch else None,
        )
        self.in_first_epoch = False
        is_best = position.best_error is None or metrics.test_error < position.best_error
        self.position = Position(
            epoch=position.epoch + 1, best_error=metrics.test_error if is_best else position.best_error
        )
        self.sums.zero_()
        if self.log:
            self.log.write(asdict(metrics))
        checkpoint = take_checkpoint(self)
        if checkpoint:
            self.writer.submit(lambda: write_epoch(self, checkpoint, is_best))
        return metrics

    def _count_skipped(self, images: int) -> None:
        self.sums[2] += images

    # -- one step ------------------------------------------------------------------------------------------------

    def _first_step(self, x: Tensor, target: Tensor) -> list[Tensor]:
        """The first step, timed because it does what is done once: compiles kernels and captures the graph."""
        started = time.perf_counter()
        saliencies = self._step(x, target)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.first_step_seconds = time.perf_counter() - started
        return saliencies

    def _step(self, x: Tensor, target: Tensor) -> list[Tensor]:
        """Train on one batch; the saliencies it gave, to be used before the next step."""
        self.batch = x, target
        inputs = (x.contiguous(memory_format=self.memory_format), target)
        if self.device.type != "cuda" or world_size() > 1:
            try:
                return self._train(*inputs)
            except UserError as error:  # a layer met a NaN
                raise self._diverged() from error
        if self.captured is None:
            state = [
                *self.model.parameters(),
                *self.model.buffers(),
                self.sums,
                *momenta(self.model, self.optimizer).values(),
            ]
            self.captured = CapturedCall(self._train, inputs, changes=state)
        saliencies: list[Tensor] = self.captured(*inputs) if self.captured.fits(inputs) else self._train(*inputs)
        return saliencies

    def _train(self, x: Tensor, target: Tensor) -> list[Tensor]:
        """Forward, losses, backward, update. Never waits for the device, so a CUDA graph can hold it."""
        with torch.autocast(
            self.device.type, self.training.autocast_dtype, enabled=self.training.autocast_dtype != torch.float32
        ):
            logits = self.forward(x)
        loss = total = F.cross_entropy(logits.float(), target, label_smoothing=self.training.label_smoothing)
        self.controllers.see(x, target, logits)
        saliencies = take_saliencies(self.model)
        if (penalty := self.controllers.penalty(saliencies)) is not None:
            total = total + penalty
        self.optimizer.zero_grad(set_to_none=True)
        with overlapping(self.device) if world_size() == 1 else nullcontext():  # DDP waits for every gradient
            total.backward()
        if self.training.clip_gradients is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_gradients)
        self.optimizer.step()
        self.controllers.after_update()
        wrong = (logits.argmax(1) != target).sum()
        self.sums[:2] += torch.stack([loss.detach() * len(target), wrong]).double()
        return [saliency.detach() for saliency in saliencies]

    def _schedule(self, progress: float) -> None:
        rate = cosine_learning_rate(self.training.learning_rate, progress)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # a captured graph reads it there
            else:
                group["lr"] = rate
        self.controllers.before_step(progress)

    def _progress(self, ahead: int = 0) -> float:
        """The progress of the next step, or of one before or after it."""
        return (self.steps_done + ahead) / (self.steps_per_epoch * self.training.epochs)

    def _target_rate(self) -> float:
        rates = [layer.pruning_rate for _, layer in dynamic_layers(self.model)]
        return sum(rates) / len(rates) if rates else 0.0

    # -- stopping and going on -----------------------------------------------------------------------------------

    @property
    def steps_done(self) -> int:
        return self.position.epoch * self.steps_per_epoch + self.position.step

    @property
    def mean_loss(self) -> float:
        """The mean loss of the epoch under way. Waits for the device."""
        return float(self.sums[0]) / max(1, self.position.seen // world_size())

    def check_finite(self) -> None:
        """Stop a run whose loss is no number any more, on any rank; all must ask. Waits for the device."""
        if any_rank(not bool(self.sums.isfinite().all()), self.device):
            raise self._diverged()

    def _diverged(self) -> Diverged:
        kept = RunFolder(self.folder)
        if rank() == 0:
            kept.write_diverged(snapshot(self.model))
        assert self.batch is not None
        layer = first_bad_layer(self.model, *self.batch)
        return Diverged(
            f"training diverged in epoch {self.position.epoch + 1}, step {self.position.step + 1}: the first layer "
            f"that went bad is {layer}. The weights are in {kept.diverged_file}. "
            f"Lower `learning_rate` (now {self.training.learning_rate})"
            + (", or start from calmer saliencies (`saliency_start` calm or ones)" if self.evaluator.has_gates else "")
        )

    def save(self) -> None:
        """Start to write a checkpoint of this moment. Every rank takes part, rank 0 writes."""
        checkpoint = take_checkpoint(self)
        if checkpoint:
            self.writer.submit(lambda: save_checkpoint(self.folder, checkpoint))
