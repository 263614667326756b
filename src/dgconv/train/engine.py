"""Trains networks, one or several, until they are done or told to stop, and loses nothing."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Literal

import torch

from ..data import Data
from ..environment import refuse_missing_gpu
from ..errors import UserError
from ..files import check_folder
from ..runs import Checkpoint, RunFolder
from ..runs.leftovers import content_of, remove_if_empty, remove_leftovers
from ..runs.lock import locked
from .beginning import refuse_mistakes
from .diagnose import Diverged
from .distributed import any_rank, is_restart, rank
from .recipe import Recipe
from .side_by_side import FinishedRun, Job, Queue, Silent, Watcher, save_for_good
from .stop import Stopped, TimeLimit, stop_requests

SIDE_BY_SIDE = 6  # networks that fill an H200 (benchmarks/side_by_side.py); with more, each only takes longer
Resuming = bool | Literal["begun"]


def train(recipe: Recipe, folder: Path | str, *, device: str = "cpu", watcher: Watcher | None = None) -> FinishedRun:
    """Train one network by a recipe into a run folder; see :func:`train_all`."""
    return train_all([(recipe, folder)], device=device, watcher=watcher)[0]


def resume(folder: Path | str, *, device: str = "cpu", watcher: Watcher | None = None) -> FinishedRun:
    """Go on with a run that was stopped, exactly as if it had not been."""
    folder = Path(folder)
    recipe = Recipe.from_dict(RunFolder(folder).checkpoint.recipe, str(folder))
    return train_all([(recipe, folder)], device=device, watcher=watcher, resuming=True)[0]


def train_all(
    jobs: Sequence[tuple[Recipe, Path | str]],
    *,
    device: str = "cpu",
    watcher: Watcher | None = None,
    resuming: Resuming = False,
    time_limit: TimeLimit | None = None,
    side_by_side: int | None = None,
    data: Data | None = None,
) -> list[FinishedRun]:
    """Train several networks, ``side_by_side`` of them at a time; when one is done, the next begins.

    The default is 6 on a GPU, each on a stream of its own, and 1 on a CPU.

    What a run folder holds is in :mod:`dgconv.runs.names`. Folders must be new or empty, unless they are resumed: all
    of them, or with ``resuming="begun"`` those that have a checkpoint, so that the same call can be made until all is
    trained. Nobody else can train in them meanwhile. A network that diverges is told at the end, after the others are
    trained. Once a time limit is over, all are saved and :class:`Stopped` is raised, as after Ctrl-C.

    ``data`` is what to train on, instead of the data sets that the recipes name.
    """
    folders = [Path(folder) for _, folder in jobs]
    _check_folders(folders)
    watcher = watcher if watcher and rank() == 0 else Silent()
    target = torch.device(device)
    refuse_missing_gpu(device)
    at_once = _at_once(side_by_side, target, len(jobs))
    load = _Loader(target, data)
    for recipe, _ in jobs:  # before anything is written, and before the device is used: readers are forked
        load.read(recipe)
    prepare_device(target)
    with (
        _holding(folders, resuming, target),
        _telling_what_is_kept(folders),
        stop_requests(time_limit) as stop,
        ExitStack() as leave,
    ):
        found = [Job(recipe, Path(folder), _checkpoint_for(Path(folder), resuming)) for recipe, folder in jobs]
        for job in found[at_once:]:
            refuse_mistakes(job.recipe, job.folder, load.read(job.recipe), job.checkpoint)  # now, and not hours later
        queue = Queue(found, load, at_once, watcher, target, leave)
        if queue.drive(stop):
            for index in queue.waiting:
                if not found[index].checkpoint and resuming != "begun":
                    save_for_good(queue.begin(index))  # where it begins, so that it can be resumed, too
            unfinished = [*queue.under_way, *queue.waiting]
            raise stop.stopped([folders[index] for index in unfinished], queue.diverged)
    if queue.diverged:
        raise Diverged("\n".join(map(str, queue.diverged)))
    return [queue.results[index] for index in range(len(jobs))]


def _at_once(asked: int | None, device: torch.device, jobs: int) -> int:
    if asked is not None and asked < 1:
        raise UserError(f"`side_by_side` takes a number of networks, at least 1, got {asked}")
    default = SIDE_BY_SIDE if device.type == "cuda" else 1
    return max(1, min(asked or default, jobs))


def _check_folders(folders: list[Path]) -> None:
    places = [os.path.realpath(folder) for folder in folders]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise UserError(f"two networks are to be trained in {folders[number]}; each needs a run folder of its own")


@contextmanager
def _holding(folders: list[Path], resuming: Resuming, device: torch.device) -> Iterator[None]:
    """Run folders, made if they are new. Only the first rank writes, so it holds them for all, before others read.

    Where a mistake of the user's, or a stop, ends the training before anything is written, new ones go again, and what
    they are in, if that is new, too.
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
                    if resuming is not True:
                        new += [place for place in (folder, *folder.parents) if not place.exists()]
                        folder.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(folders))
                if resuming == "begun":
                    for folder in folders:
                        remove_leftovers(folder)
            except UserError as error:
                refusal = error
        try:
            if any_rank(refusal is not None, device):
                raise refusal or UserError("nothing is trained here; the first process says why")
            yield
        except (UserError, Stopped):
            for place in sorted(new, key=lambda place: len(place.parts), reverse=True):  # what is within goes first
                remove_if_empty(place)
            raise


@contextmanager
def _telling_what_is_kept(folders: list[Path]) -> Iterator[None]:
    """A disk that is full, or gone, ends the training."""
    try:
        yield
    except OSError as error:
        raise _disk_trouble(error, folders) from error


def _disk_trouble(error: OSError, folders: Sequence[Path]) -> UserError:
    """What to say when a disk is full, or a file gone: what is kept of the runs, and how to go on."""
    where = os.fsdecode(error.filename) if error.filename else ", ".join(map(str, folders))
    kept = [folder for folder in folders if RunFolder(folder).has_checkpoint]
    problem = f"the training ended, {where}: {error.strerror}"
    if kept:
        return UserError(f"{problem}. The last checkpoint is kept. Make room or mend that", resume=kept)
    return UserError(
        f"{problem}. There is no checkpoint yet. Make room or mend that, remove the run folder and train again"
    )


def _refuse_content(folder: Path) -> None:
    if not is_restart() and folder.exists() and content_of(folder):
        raise UserError(f"{folder} exists and is not empty; name another folder with `out`, or use `resume`")


def _checkpoint_for(folder: Path, resuming: Resuming) -> Checkpoint | None:
    """What to go on from: asked for, or because torchrun has started this group again."""
    where_begun = resuming == "begun" or is_restart()
    run = RunFolder(folder)
    if resuming is True or (where_begun and run.has_checkpoint):
        return run.checkpoint
    if rank() == 0:
        _refuse_content(folder)  # again: until it was held, others could write there
    return None


def prepare_device(device: torch.device) -> None:
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

    def __init__(self, device: torch.device, given: Data | None = None) -> None:
        self.device, self.given = device, given
        self.loaded: dict[object, Data] = {}
        self.on_device: dict[object, Data] = {}

    def read(self, recipe: Recipe) -> Data:
        return recipe.data.augmented(self._images(recipe))

    def __call__(self, recipe: Recipe) -> Data:
        if self.device.type != "cuda":
            return self.read(recipe)
        key = self._key(recipe)
        if key not in self.on_device:
            self.on_device[key] = self._images(recipe).to(self.device)
        return recipe.data.augmented(self.on_device[key])

    def _images(self, recipe: Recipe) -> Data:
        key = self._key(recipe)
        if key not in self.loaded:
            self.loaded[key] = self.given or recipe.data.load_images()
        return self.loaded[key]

    @staticmethod
    def _key(recipe: Recipe) -> object:
        """All that decides what is read: not what is done to the images, nor by how many processes."""
        return replace(recipe.data, cutout=0, smallest_crop=None, workers=None)
