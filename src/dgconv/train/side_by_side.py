"""Several networks trained at a time, a step of each in turn, so that each fills the gaps of the others on a GPU."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from ..data import Data
from ..models import ImageClassifier
from .diagnose import Diverged
from .distributed import any_rank, wait_for_ranks, world_size
from .evaluate import Evaluation
from .metrics import EVALUATING, EpochMetrics, Evaluating
from .run import Run
from .stop import StopRequest

LOOK_EVERY = 0.5  # seconds between looks at the loss, which wait for the device
AGREE_EVERY = 50  # steps after which ranks agree whether to save, or to stop


@dataclass(frozen=True)
class Result:
    """A finished run."""

    model: ImageClassifier
    data: Data
    evaluation: Evaluation
    folder: Path


class Watcher(Protocol):
    """Follows the training of several networks, for a display. ``index`` says which."""

    def start(self, index: int, name: str, steps: int, done: int) -> None: ...

    def first_step(self, index: int, seconds: float, compiled: bool) -> None: ...

    def step(self, index: int, epoch: int, done: int, loss: float) -> None: ...

    def epoch(self, index: int, metrics: EpochMetrics) -> None: ...


class Silent:
    """Watches nothing."""

    def start(self, index: int, name: str, steps: int, done: int) -> None: ...

    def first_step(self, index: int, seconds: float, compiled: bool) -> None: ...

    def step(self, index: int, epoch: int, done: int, loss: float) -> None: ...

    def epoch(self, index: int, metrics: EpochMetrics) -> None: ...


class Queue:
    """Networks that wait, those under way, and what has become of the others; by their numbers."""

    def __init__(
        self, begin: Callable[[int], Run], count: int, at_once: int, watcher: Watcher, device: torch.device
    ) -> None:
        self.begin, self.at_once, self.watcher, self.device = begin, at_once, watcher, device
        self.waiting = deque(range(count))
        self.under_way: dict[int, _UnderWay] = {}
        self.results: dict[int, Result] = {}
        self.diverged: list[Diverged] = []

    def drive(self, stop: StopRequest) -> bool:
        """A step of each in turn, until all are done, or have diverged. True if it was stopped, and all are saved."""
        saved = looked = time.monotonic()
        count = 0
        while self._fill():
            count += 1
            now = time.monotonic()
            look = now - looked > LOOK_EVERY
            # The clocks of ranks differ, but all must drop a network that diverged at the same step.
            check = look if world_size() == 1 else count % AGREE_EVERY == 0
            minutes = min(one.run.recipe.checkpoint_minutes for one in self.under_way.values())
            save = _agree(now - saved > 60 * minutes, count, self.device)
            evaluating = [number for number in list(self.under_way) if self._step(number, look, check, save)]
            for number in evaluating:
                self._finish_epoch(number)
            saved, looked = (now if save else saved), (now if look else looked)
            if (self.under_way or self.waiting) and _agree(stop.is_made, count, self.device):
                self._save()
                return True
        return False

    def _fill(self) -> bool:
        """Begins as many as there is room for. False if nothing is left to do."""
        while self.waiting and len(self.under_way) < self.at_once:
            number = self.waiting.popleft()
            stream = torch.cuda.Stream() if self.device.type == "cuda" else None
            with _on(stream):
                run = self.begin(number)
            if stream:
                stream.synchronize()  # the data set that it brought is read by others, too
            self.under_way[number] = _UnderWay(run, run.advance(), stream)
            self.watcher.start(number, run.recipe.title, run.steps_per_epoch * run.recipe.epochs, run.steps_done)
        return bool(self.under_way)

    def _step(self, number: int, look: bool, check: bool, save: bool) -> bool:
        """The next step of one. True if it has begun to evaluate instead."""
        one = self.under_way[number]
        run = one.run
        with _on(one.stream):
            try:
                metrics = next(one.steps)
                if check and metrics is None:
                    run.check_finite()
            except StopIteration:
                self.results[number] = Result(run.model, run.data, run.evaluation, run.folder)
                del self.under_way[number]
                return False
            except Diverged as error:  # the others go on
                self.diverged.append(Diverged(str(error)))  # as it is, its traceback would hold the run's memory
                del self.under_way[number]
                return False
            if not one.is_started and run.first_step_seconds is not None:
                one.is_started = True
                self.watcher.first_step(number, run.first_step_seconds, run.recipe.compile)
            if metrics is EVALUATING:
                return True
            if isinstance(metrics, EpochMetrics):
                self.watcher.epoch(number, metrics)
                return False
            if save:
                run.save()
            if look:
                self.watcher.step(number, run.position.epoch, run.steps_done, run.mean_loss)
        return False

    def _finish_epoch(self, number: int) -> None:
        one = self.under_way[number]
        with _on(one.stream):
            metrics = next(one.steps)
            assert isinstance(metrics, EpochMetrics)
            self.watcher.epoch(number, metrics)

    def _save(self) -> None:
        for one in self.under_way.values():
            with _on(one.stream):  # after the steps that are queued there
                save_for_good(one.run)


@dataclass
class _UnderWay:
    run: Run
    steps: Iterator[EpochMetrics | Evaluating | None]
    stream: torch.cuda.Stream | None
    is_started: bool = False


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream else nullcontext()


def save_for_good(run: Run) -> None:
    """For good: what is on the disk then is whole, and no rank leaves before."""
    run.save()
    run.writer.wait()
    wait_for_ranks(run.device)


def _agree(wanted: bool, count: int, device: torch.device) -> bool:
    """Saving takes all ranks, so they must decide together; not after each step, for that would cost time."""
    if world_size() == 1:
        return wanted
    return count % AGREE_EVERY == 0 and any_rank(wanted, device)
