"""Several networks trained at a time, so that on a GPU each fills the gaps of the others.

There each has a stream of its own and goes at its own pace: whichever has few steps queued gets the next one, and the
host never waits for one of them while others could go on. Where the device must choose, those that began first go
first: else a long one would be left alone at the end. On a CPU, and where ranks must keep step, all take turns.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..data import Data
from ..models import ImageClassifier
from ..runs import Checkpoint, EpochMetrics
from .diagnose import Diverged
from .distributed import any_rank, wait_for_ranks, world_size
from .evaluate import Evaluation
from .metrics import EVALUATING, Evaluating
from .recipe import Recipe
from .run import Run
from .stop import StopRequest

LOOK_EVERY = 0.5  # seconds between looks at the loss, which wait for the device
AGREE_EVERY = 50  # steps after which ranks agree whether to save, or to stop
AHEAD = 8  # steps of a network queued on its stream: enough for the host to see to the others meanwhile
NAP = 1e-4  # seconds, when all streams have enough to do


@dataclass(frozen=True)
class FinishedRun:
    """A network that is trained, with what it was trained on, and what came out."""

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


class Job(NamedTuple):
    """A network to be trained: by which recipe, where, and from where on."""

    recipe: Recipe
    folder: Path
    checkpoint: Checkpoint | None


class Queue:
    """Networks that wait, those under way, and what has become of the others; by their numbers.

    Args:
        load: gives the data set of a recipe.
        leave: is told what to close in the end.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        load: Callable[[Recipe], Data],
        at_once: int,
        watcher: Watcher,
        device: torch.device,
        leave: ExitStack,
    ) -> None:
        self.jobs, self.load, self.leave = jobs, load, leave
        self.at_once, self.watcher, self.device = at_once, watcher, device
        self.waiting = deque(range(len(jobs)))
        self.under_way: dict[int, _UnderWay] = {}
        self.results: dict[int, FinishedRun] = {}
        self.diverged: list[Diverged] = []

    def begin(self, number: int) -> Run:
        recipe, folder, checkpoint = self.jobs[number]
        run = Run(recipe, folder, self.load(recipe), self.device, checkpoint, self.at_once)
        self.leave.callback(run.writer.close)  # while the folder is still held; and nothing here holds the run
        if run.log:
            self.leave.callback(run.log.close)
        return run

    def drive(self, stop: StopRequest) -> bool:
        """Steps all until they are done, or have diverged. True if it was stopped, and all are saved."""
        saved = looked = time.monotonic()
        count = 0
        while self._fill():
            count += 1
            now = time.monotonic()
            look = now - looked > LOOK_EVERY
            # The clocks of ranks differ, but all must drop a network that diverged at the same step.
            check = look if world_size() == 1 else count % AGREE_EVERY == 0
            minutes = min(one.run.training.checkpoint_minutes for one in self.under_way.values())
            save = _agree(now - saved > 60 * minutes, count, self.device)
            saved, looked = (now if save else saved), (now if look else looked)
            if not self._step_those_ready(_Due(look, check, save)):
                time.sleep(NAP)
            if (self.under_way or self.waiting) and _agree(stop.is_made, count, self.device):
                self._save()
                return True
        return False

    def _fill(self) -> bool:
        """Begins as many as there is room for. False if nothing is left to do."""
        while self.waiting and len(self.under_way) < self.at_once:
            number = self.waiting.popleft()
            stream = _stream(number) if self.device.type == "cuda" else None
            with _on(stream):
                run = self.begin(number)
            if stream:
                stream.synchronize()  # the data set that it brought is read by others, too
            self.under_way[number] = _UnderWay(run, run.advance(), stream)
            self.watcher.start(number, run.recipe.title, run.steps_per_epoch * run.training.epochs, run.steps_done)
        return bool(self.under_way)

    def _step_those_ready(self, due: "_Due") -> bool:
        """False if there are none, because all have enough to do."""
        ready = [number for number, one in self.under_way.items() if one.is_ready(due)]
        for number in ready:
            self._step(number)
        return bool(ready)

    def _step(self, number: int) -> None:
        """What is due of one, and its next step, or what comes after the last one of an epoch."""
        one = self.under_way[number]
        with one.turn():
            try:
                if not one.is_evaluating:  # a run cannot be saved then
                    self._see_to(number, one)
                self._advance(number, one)
            except StopIteration:
                self.results[number] = FinishedRun(one.run.model, one.run.data, one.run.evaluation, one.run.folder)
                del self.under_way[number]
            except Diverged as error:  # the others go on
                self.diverged.append(Diverged(str(error)))  # as it is, its traceback would hold the run's memory
                del self.under_way[number]

    def _see_to(self, number: int, one: "_UnderWay") -> None:
        due, one.due = one.due, _Due()
        run = one.run
        if due.check:
            run.check_finite()
        if due.save:
            run.save()
        if due.look and run.position.step:
            self.watcher.step(number, run.position.epoch, run.steps_done, run.mean_loss)

    def _advance(self, number: int, one: "_UnderWay") -> None:
        metrics = next(one.steps)
        one.has_queued()
        one.is_evaluating = metrics is EVALUATING
        if not one.is_started and one.run.first_step_seconds is not None:
            one.is_started = True
            self.watcher.first_step(number, one.run.first_step_seconds, one.run.training.compile)
        if isinstance(metrics, EpochMetrics):
            self.watcher.epoch(number, metrics)

    def _save(self) -> None:
        for number, one in self.under_way.items():
            with one.turn():  # after the steps that are queued there
                if one.is_evaluating:
                    self._advance(number, one)
                save_for_good(one.run)


@dataclass(frozen=True)
class _Due:
    """What is to be done before a network's next step."""

    look: bool = False
    check: bool = False
    save: bool = False

    def and_also(self, other: "_Due") -> "_Due":
        return _Due(self.look or other.look, self.check or other.check, self.save or other.save)


@dataclass
class _UnderWay:
    run: Run
    steps: Iterator[EpochMetrics | Evaluating | None]
    stream: torch.cuda.Stream | None
    is_started: bool = False
    is_evaluating: bool = False
    due: _Due = _Due()
    random: Tensor = field(default_factory=torch.get_rng_state)  # as it was begun, or restored
    queued: deque[torch.cuda.Event] = field(default_factory=deque)  # of the steps that the device has still to do

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Its turn: on its stream, and with random numbers of its own, as if it were alone. On a GPU all draw from one
        source."""
        with _on(self.stream):
            torch.set_rng_state(self.random)
            yield
            self.random = torch.get_rng_state()

    def has_queued(self) -> None:
        if self.stream:
            self.queued.append(self.stream.record_event())

    def is_ready(self, also: _Due) -> bool:
        """Whether it can be advanced. What reads results must find them done, or it would wait for the device."""
        self.due = self.due.and_also(also)
        if world_size() > 1:
            return True  # all ranks must take the same turns
        while self.queued and self.queued[0].query():
            self.queued.popleft()
        is_read = self.is_evaluating or self.due != _Due() or self.run.position.step == self.run.steps_per_epoch
        return len(self.queued) < (1 if is_read else AHEAD)


def _stream(number: int) -> torch.cuda.Stream:
    """The lower the number, the higher its priority, as far as the device has priorities."""
    lowest, highest = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]  # static, unlike its stub
    return torch.cuda.Stream(priority=min(lowest, highest + number))


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream else nullcontext()


def save_for_good(run: Run) -> None:
    """Saves for good: what is on the disk then is whole, and no rank leaves before."""
    run.save()
    run.writer.wait()
    wait_for_ranks(run.device)


def _agree(wanted: bool, count: int, device: torch.device) -> bool:
    """Saving takes all ranks, so they must decide together; not after each step, for that would cost time."""
    if world_size() == 1:
        return wanted
    return count % AGREE_EVERY == 0 and any_rank(wanted, device)
