"""What a tuning does, step by step: each is a function of networks and data that knows nothing of the others."""

import copy
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..analysis.rate import RANGE_IMAGES, adapt_norms, calibration_images, set_rate
from ..bench import Bench
from ..bench.run import measure
from ..data import Data
from ..data.sample import labelled_sample
from ..deploy.precision import Precision, prepare_as
from ..deploy.run.prepared import PreparedModel
from ..environment import is_lack_of_memory
from ..errors import UserError
from ..files import write_atomically
from ..layers.mode import evaluating
from ..layers.select import dynamic_layers
from ..models import ImageClassifier
from ..runs.tensors import to_bytes
from ..train import Recipe, Stopped, TimeLimit, train_all
from ..train.evaluate import evaluate
from ..train.run import Run
from ..train.side_by_side import Watcher
from ..train.tables import DataTable, ModelTable, TrainingTable
from .network import plain

PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
MOST_EPOCHS = 30
TIMED_STEPS = 4
REPEATS: int | None = None  # of each form that is timed; as many as some seconds hold
NORM_IMAGES, NORM_BATCH = 512, 64  # on which batch norms are measured anew
LOSS_IMAGES = 1024  # on which they are compared with those of the training
LOWER = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2, 0.0)  # times the trained rate, tried for an allowed drop
RAMP_END = 0.6  # of the training: the rest is fine-tuning at the full rate
OURS = "prepared"


@dataclass(frozen=True)
class Form:
    """A network of ours as it runs in one precision, and the error of that."""

    prepared: PreparedModel
    error: float


def forms_of(model: nn.Module, data: Data, notes: list[str], name: str) -> dict[Precision, Form]:
    """The network prepared in each precision that it can be had in, with the error on the test images."""
    found: dict[Precision, Form] = {}
    for precision in PRECISIONS:
        try:
            prepared = prepare_again(model, precision, data)
        except UserError as error:
            notes.append(f"{name} in {precision}: {error}")
            continue
        found[precision] = Form(prepared, evaluate(prepared, data.test).error)
    return found


def prepare_again(model: nn.Module, precision: Precision, data: Data) -> PreparedModel:
    """The same form that :func:`forms_of` has tried."""
    images = calibration_images(data.train, count=RANGE_IMAGES)
    return prepare_as(plain(model), precision, images, example=images[:1])


def time_all(model: nn.Module | None, dense: nn.Module, data: Data, threads: tuple[int, ...]) -> Bench:
    """Milliseconds of a dense network in every runtime that is installed, and of one made from it, on a test image."""
    image = next(iter(data.test.batches(1, train=False)))[0]
    images = calibration_images(data.train, count=RANGE_IMAGES)[:32]
    return measure(
        plain(model or dense),
        image,
        dense=plain(dense),
        threads=threads,
        precision=PRECISIONS,
        calibration=images,
        repeats=REPEATS,
    )


def fastest(bench: Mapping[str, Any], precision: str | None = None, *, rivals_only: bool = False) -> tuple[str, float]:
    """The fastest form of the dense network with the first number of threads, and its seconds."""
    rows = [row for row in bench["measurements"][0]["rows"] if row["kind"] == "dense" and row["median"]]
    rows = [row for row in rows if precision is None or row["precision"] == precision]
    rows = [row for row in rows if not rivals_only or row["form"] != OURS] or rows
    if not rows:
        return "", math.nan
    best = min(rows, key=lambda row: row["median"])
    return best["form"], best["median"]


def seconds_of(bench: Mapping[str, Any], kind: str, precision: str) -> float | None:
    """Seconds of our form of a network with the first number of threads."""
    for row in bench["measurements"][0]["rows"]:
        if (row["kind"], row["form"], row["precision"]) == (kind, OURS, precision):
            return cast(float, row["median"])
    return None


# -- fine-tuning ---------------------------------------------------------------------------------------------------


def recipe_of(
    model: ImageClassifier, data: DataTable, name: str, options: Mapping[str, Any], training: TrainingTable
) -> Recipe:
    """How a network made from this one is trained. ``options`` are of the network: what becomes of its layers."""
    own = {key: value for key, value in model.config.items() if key not in ("name", "num_classes")}
    return Recipe(name, ModelTable(model.config["name"], own | dict(options)), data, training)


def write_start(model: ImageClassifier, recipe: Recipe, classes: int, file: Path) -> None:
    """What the training starts from: the weights of the network, and of its new layers those that change nothing."""
    torch.manual_seed(recipe.training.seed)
    fresh = recipe.build_model(classes)
    fresh.load_state_dict(model.state_dict(), strict=False)
    write_atomically(file, to_bytes({name: tensor.contiguous() for name, tensor in fresh.state_dict().items()}))


def seconds_a_step(recipe: Recipe, data: Data, device: torch.device) -> float:
    """Measured in a training that is thrown away: reading images, the teacher and all."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(recipe, Path(folder), recipe.data.augmented(data), device)
        try:
            with closing(cast(Generator[Any], run.advance())) as steps:
                seconds = []
                for _ in range(1 + min(TIMED_STEPS, run.steps_per_epoch - 1)):
                    begin = time.perf_counter()
                    next(steps)
                    if device.type == "cuda":
                        torch.cuda.synchronize()
                    seconds.append(time.perf_counter() - begin)
        finally:
            run.writer.close()
            if run.log:
                run.log.close()
    return median(seconds[1:] or seconds)


def fitting_batch(try_it: Callable[[int], float], batch_size: int, notes: list[str]) -> tuple[int, float]:
    """The largest batch, halved as often as need be, for which there is memory; with what ``try_it`` gives for it."""
    while True:
        try:
            return batch_size, try_it(batch_size)
        except (MemoryError, RuntimeError) as error:
            if not is_lack_of_memory(error) or batch_size == 1:
                raise
            batch_size = smaller_batch(batch_size, notes)


def smaller_batch(batch_size: int, notes: list[str]) -> int:
    half = max(1, batch_size // 2)
    notes.append(f"memory is short for batches of {batch_size} images: {half} are taken")
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return half


def train_until(
    recipe: Recipe, folder: Path, data: Data, device: str, limit: TimeLimit, watcher: Watcher | None
) -> bool:
    """Trains, or goes on with it. False if the time ended first; the last whole epoch is there then, and is kept."""
    try:
        train_all(
            [(recipe, folder)],
            device=device,
            watcher=watcher,
            resuming="begun",
            time_limit=limit,
            data=data,
        )
    except Stopped as stopped:
        if stopped.number or stopped.diverged:
            raise
        return False
    return True


def remove(folder: Path) -> None:
    """A training that is begun anew otherwise."""
    if folder.is_dir():
        shutil.rmtree(folder)


# -- after it ------------------------------------------------------------------------------------------------------


def measure_norms_anew(model: nn.Module, data: Data) -> bool:
    """Batch norms get the statistics of some training images, as the network is now, if that lowers the loss; whether
    it did."""
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        return False
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    loss = _loss(model, data)
    adapt_norms_of(model, calibration_images(data.train, count=NORM_IMAGES))
    if _loss(model, data) < loss:
        return True
    for buffer, value in buffers:
        buffer.copy_(value)
    return False


@torch.no_grad()
def _loss(model: nn.Module, data: Data) -> float:
    """On training images of all classes, as they are, not augmented."""
    total, count = 0.0, 0
    with evaluating(model):
        for images, labels in labelled_sample(data.train, LOSS_IMAGES, NORM_BATCH):
            total += float(F.cross_entropy(model(images).float(), labels, reduction="sum"))
            count += len(labels)
    return total / count


def adapt_norms_of(model: nn.Module, images: Tensor) -> None:
    if any(True for _ in dynamic_layers(model)):
        adapt_norms(model, images)


def within_drop(
    model: ImageClassifier, data: Data, most: float, error: float, tell: Callable[[str], None]
) -> tuple[ImageClassifier, float, float]:
    """The network at the highest rate, up to the one it was trained at, at which the error is no more than ``most``;
    with that rate and error. At the lowest if there is none."""
    images = calibration_images(data.train, count=NORM_IMAGES)
    trained = max((layer.pruning_rate for _, layer in dynamic_layers(model)), default=0.0)
    best, best_rate, best_error = model, trained, error
    for share in LOWER:
        if error <= most:
            break
        rate = round(share * trained, 4)
        changed = copy.deepcopy(model)
        set_rate(changed, rate, images)
        error = evaluate(changed, data.test).error
        tell(f"at rate {rate:g} the error is {error:.2f} %")
        if error < best_error or error <= most:
            best, best_rate, best_error = changed, rate, error
    if best is not model:
        best.config["converted"] = {
            name: options | {"pruning_rate": best_rate} for name, options in best.config["converted"].items()
        }
    return best, best_rate, best_error


def pick_form(
    candidates: Sequence[tuple[str, Precision, float, float | None]], most: Mapping[str, float]
) -> tuple[str, Precision] | None:
    """The fastest of (kind, precision, error, seconds) whose error is allowed for its kind."""
    allowed = [one for one in candidates if one[3] is not None and one[2] <= most[one[0]]]
    best = min(allowed, key=lambda one: one[3] or math.inf, default=None)
    return (best[0], best[1]) if best else None
