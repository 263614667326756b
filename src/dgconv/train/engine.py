"""Trains networks, one or several, until they are done or told to stop, and loses nothing."""

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import torch

from ..data import Data
from ..errors import UserError
from ..models import ImageClassifier
from ..writable import check_folder
from .checkpoint import CHECKPOINT, Checkpoint, disk_trouble, load_checkpoint
from .diagnose import Diverged
from .distributed import any_rank, is_restart, rank, wait_for_ranks, world_size
from .evaluate import Evaluation
from .folder_lock import content_of, locked
from .metrics import EVALUATING, EpochMetrics
from .recipe import Recipe
from .run import Run
from .stop import Stopped, StopRequest, TimeLimit, stop_requests

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


def train(recipe: Recipe, folder: Path | str, *, device: str = "cpu", watcher: Watcher | None = None) -> Result:
    """Train one network by a recipe into a run folder; see :func:`train_all`."""
    return train_all([(recipe, folder)], device=device, watcher=watcher)[0]


def resume(folder: Path | str, *, device: str = "cpu", watcher: Watcher | None = None) -> Result:
    """Go on with a run that was stopped, exactly as if it had not been."""
    folder = Path(folder)
    recipe = Recipe.from_dict(load_checkpoint(folder).recipe, str(folder))
    return train_all([(recipe, folder)], device=device, watcher=watcher, resuming=True)[0]


def train_all(
    jobs: Sequence[tuple[Recipe, Path | str]],
    *,
    device: str = "cpu",
    watcher: Watcher | None = None,
    resuming: bool = False,
    time_limit: TimeLimit | None = None,
) -> list[Result]:
    """Train several networks: side by side on a GPU, each on a stream of its own; one after another on a CPU.

    A run folder holds ``config.json``, ``metrics.jsonl``, ``model.safetensors`` (after the last whole epoch),
    ``best.safetensors`` and ``checkpoint.safetensors``. Folders must be new or empty, unless they are resumed.
    Nobody else can train in them meanwhile. A network that diverges is told at the end, after the others are trained.
    Once a time limit is over, all are saved and :class:`Stopped` is raised, as after Ctrl-C.
    """
    folders = [Path(folder) for _, folder in jobs]
    _check_folders(folders)
    watcher = watcher if watcher and rank() == 0 else Silent()
    target = torch.device(device)
    load = _Loader(target)
    for recipe, _ in jobs:  # before anything is written, and before the device is used: readers are forked
        load.read(recipe)
    _prepare_device(target)
    results: list[Result] = []
    diverged: list[Diverged] = []
    with (
        _holding(folders, resuming, target),
        _telling_what_is_kept(folders),
        stop_requests(time_limit) as stop,
        ExitStack() as leave,
    ):
        found = [_checkpoint_for(folder, resuming) for folder in folders]

        def begin(index: int, side_by_side: int = 1) -> Run:
            recipe, _ = jobs[index]
            run = Run(recipe, folders[index], load(recipe), target, found[index], side_by_side)
            leave.callback(run.writer.close)  # while the folder is still held
            return run

        if target.type != "cuda":
            for index in range(len(jobs)):
                run = begin(index)
                try:
                    failures = _drive([run], [index], watcher, stop)
                except Stopped as stopped:
                    waiting = range(index + 1, len(jobs))
                    for later in waiting:
                        if not found[later]:
                            _save([begin(later)])  # where it begins, so that it can be resumed, too
                    raise stop.stopped([*stopped.folders, *(folders[later] for later in waiting)], diverged) from None
                diverged += failures
                if not failures:
                    results.append(_result(run))
        else:
            runs = [begin(index, side_by_side=len(jobs)) for index in range(len(jobs))]
            diverged = _drive(runs, list(range(len(runs))), watcher, stop)
            results = [_result(run) for run in runs] if not diverged else []
    if diverged:
        raise Diverged("\n".join(map(str, diverged)))
    return results


def _drive(runs: list[Run], numbers: list[int], watcher: Watcher, stop: StopRequest) -> list[Diverged]:
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
                    continue
                if save:
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
        if under_way and _agree(stop.is_made, count, runs):
            unfinished = [run for run, _, _ in under_way.values()]
            _save(unfinished)
            raise stop.stopped([run.folder for run in unfinished], diverged)
    return diverged


def _on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream else nullcontext()


def _save(runs: list[Run]) -> None:
    """For good: what is on the disk then is whole, and no rank leaves before."""
    for run in runs:
        run.save()
        run.writer.wait()
    if runs:
        wait_for_ranks(runs[0].device)


def _agree(wanted: bool, count: int, runs: list[Run]) -> bool:
    """Saving takes all ranks, so they must decide together; not after each step, for that would cost time."""
    if world_size() == 1:
        return wanted
    return count % AGREE_EVERY == 0 and any_rank(wanted, runs[0].device)


def _result(run: Run) -> Result:
    return Result(run.model, run.data, run.evaluation, run.folder)


def _check_folders(folders: list[Path]) -> None:
    places = [folder.resolve() for folder in folders]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise UserError(f"two networks are to be trained in {folders[number]}; each needs a run folder of its own")


@contextmanager
def _holding(folders: list[Path], resuming: bool, device: torch.device) -> Iterator[None]:
    """Run folders, made if they are new. Only the first rank writes, so it holds them for all, before others read.

    Where a mistake of the user's ends the training before anything is written, new ones go again.
    """
    refusal: UserError | None = None
    new: list[Path] = []
    with ExitStack() as held:
        if rank() == 0:
            try:
                for folder in folders:
                    check_folder(folder)
                    if not resuming:
                        _refuse_content(folder)  # before a lock is added to it
                        new += [] if folder.exists() else [folder]
                        folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(folders))
            except UserError as error:
                refusal = error
        if any_rank(refusal is not None, device):
            raise refusal or UserError("nothing is trained here; the first process says why")
        try:
            yield
        except UserError:
            for folder in new:
                if not content_of(folder):
                    shutil.rmtree(folder, ignore_errors=True)
            raise


@contextmanager
def _telling_what_is_kept(folders: list[Path]) -> Iterator[None]:
    """A disk that is full, or gone, ends the training."""
    try:
        yield
    except OSError as error:
        raise disk_trouble(error, folders) from error


def _refuse_content(folder: Path) -> None:
    if not is_restart() and folder.exists() and content_of(folder):
        raise UserError(f"{folder} exists and is not empty; name another folder with --out, or use --resume")


def _checkpoint_for(folder: Path, resuming: bool) -> Checkpoint | None:
    """What to go on from: asked for, or because torchrun has started this group again."""
    if resuming or (is_restart() and (folder / CHECKPOINT).exists()):
        return load_checkpoint(folder)
    if rank() == 0:
        _refuse_content(folder)  # again: until it was held, others could write there
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
