"""Trains networks, one or several, until they are done or told to stop, and loses nothing."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch

from ..data import Data
from ..errors import UserError
from ..models import ImageClassifier
from .checkpoint import CHECKPOINT, Checkpoint, load_checkpoint
from .diagnose import Diverged
from .distributed import any_rank, is_restart, rank, world_size
from .evaluate import Evaluation
from .metrics import EVALUATING, EpochMetrics
from .recipe import Recipe
from .run import Run

LOOK_EVERY = 0.5  # seconds between looks at the loss, which wait for the device
AGREE_EVERY = 50  # steps after which ranks agree whether to save


@dataclass(frozen=True)
class Result:
    """A finished run."""

    model: ImageClassifier
    data: Data
    evaluation: Evaluation
    folder: Path


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM; every run under way was saved first."""

    def __init__(self, folders: list[Path], number: int) -> None:
        super().__init__(f"stopped and saved. To go on: dgconv train --resume {' '.join(map(str, folders))}")
        self.number = number


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


def train(recipe: Recipe, folder: Path, *, device: str = "cpu", watcher: Watcher | None = None) -> Result:
    """Train one network by a recipe into a run folder; see :func:`train_all`."""
    return train_all([(recipe, folder)], device=device, watcher=watcher)[0]


def resume(folder: Path, *, device: str = "cpu", watcher: Watcher | None = None) -> Result:
    """Go on with a run that was stopped, exactly as if it had not been."""
    recipe = Recipe.from_dict(load_checkpoint(folder).recipe, str(folder))
    return train_all([(recipe, folder)], device=device, watcher=watcher, resuming=True)[0]


def train_all(
    jobs: list[tuple[Recipe, Path]],
    *,
    device: str = "cpu",
    watcher: Watcher | None = None,
    resuming: bool = False,
) -> list[Result]:
    """Train several networks: side by side on a GPU, each on a stream of its own; one after another on a CPU.

    A run folder holds ``config.json``, ``metrics.jsonl``, ``model.safetensors`` (after the last whole epoch),
    ``best.safetensors`` and ``checkpoint.safetensors``. Folders must be new or empty, unless they are resumed.
    A network that diverges is told at the end, after the others are trained.
    """
    watcher = watcher if watcher and rank() == 0 else Silent()
    target = torch.device(device)
    load = _Loader(target)
    for recipe, _ in jobs:  # before anything is written, and before the device is used: readers are forked
        load.read(recipe)
    _prepare_device(target)
    found = [_checkpoint_for(folder, resuming) for _, folder in jobs]
    with _stop_signals() as stop:
        results, diverged = [], []
        if target.type != "cuda":
            for index, ((recipe, folder), checkpoint) in enumerate(zip(jobs, found, strict=True)):
                run = Run(recipe, folder, load(recipe), target, checkpoint)
                if failures := _drive([run], [index], watcher, stop):
                    diverged += failures
                else:
                    results.append(_result(run))
        else:
            runs = [
                Run(recipe, folder, load(recipe), target, checkpoint, side_by_side=len(jobs))
                for (recipe, folder), checkpoint in zip(jobs, found, strict=True)
            ]
            diverged = _drive(runs, list(range(len(runs))), watcher, stop)
            results = [_result(run) for run in runs] if not diverged else []
    if diverged:
        raise Diverged("\n".join(map(str, diverged)))
    return results


def _drive(runs: list[Run], numbers: list[int], watcher: Watcher, stop: "_StopSignals") -> list[Diverged]:
    """A step of each in turn, until all are done, or have diverged: what these have to say."""
    streams = [torch.cuda.Stream() if run.device.type == "cuda" else None for run in runs]
    under_way = {
        number: (run, run.advance(), stream) for number, run, stream in zip(numbers, runs, streams, strict=True)
    }
    for number, (run, _, _) in under_way.items():
        watcher.start(number, run.recipe.title, run.steps_per_epoch * run.recipe.epochs, run.steps_done)
    saved = looked = time.monotonic()
    count = 0
    started: set[int] = set()
    diverged: list[Diverged] = []
    while under_way:
        count += 1
        now = time.monotonic()
        look = now - looked > LOOK_EVERY
        save = _agree(
            now - saved > 60 * min(run.recipe.checkpoint_minutes for run, _, _ in under_way.values()), count, runs
        )
        evaluating: list[int] = []
        for number, (run, steps, stream) in list(under_way.items()):
            with _on(stream):
                try:
                    metrics = next(steps)
                    if look and metrics is None:
                        run.check_finite()
                except StopIteration:
                    del under_way[number]
                    continue
                except Diverged as error:  # the others go on
                    diverged.append(error)
                    del under_way[number]
                    continue
                if number not in started and run.first_step_seconds is not None:
                    started.add(number)
                    watcher.first_step(number, run.first_step_seconds, run.recipe.compile)
                if metrics is EVALUATING:
                    evaluating.append(number)
                    continue
                if isinstance(metrics, EpochMetrics):
                    watcher.epoch(number, metrics)
                elif save:
                    run.save()
                if look:
                    watcher.step(number, run.position.epoch, run.steps_done, run.mean_loss)
        for number in evaluating:
            run, steps, stream = under_way[number]
            with _on(stream):
                metrics = next(steps)
                assert isinstance(metrics, EpochMetrics)
                watcher.epoch(number, metrics)
        saved, looked = (now if save else saved), (now if look else looked)
        if stop.number and under_way:
            for run, _, _ in under_way.values():
                run.save()
                run.writer.wait()
            raise Stopped([run.folder for run, _, _ in under_way.values()], stop.number)
    return diverged


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream else nullcontext()


def _agree(wanted: bool, count: int, runs: list[Run]) -> bool:
    """Saving takes all ranks, so they must decide together; not after each step, for that would cost time."""
    if world_size() == 1:
        return wanted
    return count % AGREE_EVERY == 0 and any_rank(wanted, runs[0].device)


def _result(run: Run) -> Result:
    return Result(run.model, run.data, run.evaluation, run.folder)


def _checkpoint_for(folder: Path, resuming: bool) -> Checkpoint | None:
    """What to go on from: asked for, or because torchrun has started this group again."""
    if resuming:
        return load_checkpoint(folder)
    if is_restart() and (folder / CHECKPOINT).exists():
        return load_checkpoint(folder)
    if rank() == 0 and not is_restart():
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} exists and is not empty; name another folder with --out, or use --resume")
        folder.mkdir(parents=True, exist_ok=True)
    return None


def _prepare_device(device: torch.device) -> None:
    if device.type == "cuda":
        # Seconds that a run would else begin with: the driver's context is made while Python imports what every
        # optimizer needs. Both in threads would be faster still, but imports in two threads can block each other.
        threading.Thread(target=lambda: torch.zeros((), device=device), daemon=True).start()
        import_module("torch._dynamo")
        torch.set_float32_matmul_precision("high")  # TF32
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True


class _Loader:
    """Data sets, each loaded once however many networks use it, and kept on the device where they fit."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.loaded: dict[object, Data] = {}
        self.on_device: dict[object, Data] = {}

    def read(self, recipe: Recipe) -> Data:
        key = self._key(recipe)
        if key not in self.loaded:
            self.loaded[key] = recipe.load_data()
        return self.loaded[key]

    def __call__(self, recipe: Recipe) -> Data:
        if self.device.type != "cuda":
            return self.read(recipe)
        key = self._key(recipe)
        if key not in self.on_device:
            self.on_device[key] = self.read(recipe).to(self.device)
        return self.on_device[key]

    @staticmethod
    def _key(recipe: Recipe) -> object:
        return (
            recipe.data,
            recipe.data_dir,
            recipe.image_size,
            recipe.label_column,
            recipe.skip_corrupt_images,
            recipe.cutout,
        )


class _StopSignals:
    """The number of the first signal that asked to stop; a second Ctrl-C stops at once."""

    number = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number


@contextmanager
def _stop_signals() -> Iterator[_StopSignals]:
    """Ctrl-C and SIGTERM are taken at the end of a step. Under torchrun they are torchrun's to handle."""
    stop = _StopSignals()
    if world_size() > 1 or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    old: dict[int, Callable[[int, FrameType | None], object] | int | None] = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
