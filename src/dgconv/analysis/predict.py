"""What a trained network says of images that are in no data set."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data import EncodedSplit, Inputs
from ..data.brought import Brought
from ..data.corrupt import CorruptImage, CorruptImages
from ..deploy import storage
from ..deploy.precision import Precision, prepare_as
from ..errors import UserError
from ..files import write_atomically
from ..layers.saliency import passing_overflow
from ..models import load_model
from ..models.pretrained import find_run, list_cards
from ..pruning import what_is_left
from ..runs import RunFolder
from ..train.classes import load_data_of_run
from ..train.recipe import Recipe
from .rate import RANGE_IMAGES, calibration_images

BATCH = 32
ALONE = 2  # batches that are decoded sooner than processes for it are started
OVERFLOWS = "overflows in the network, which has no answer for it"


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of an image, best first; none and why, where there is no answer."""

    image: str
    classes: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True)
class Predictor:
    """A network with what turns images into its input and its answers into words."""

    network: nn.Module
    inputs: Inputs
    device: str = "cpu"
    name: str = ""

    @torch.no_grad()
    def __call__(
        self, images: Brought, top: int = 3, workers: int | None = None, tell: Callable[[int], None] = lambda done: None
    ) -> "Predictions":
        """All images, in their order; ``tell`` hears how many are done."""
        if top < 1:
            raise UserError(f"`top` must be at least 1, got {top}")
        if workers is not None and workers < 0:
            raise UserError(f"`workers` must be at least 0, got {workers}; 0 decodes without worker processes")
        found: dict[int, Prediction] = {}
        corrupt = _Corrupt()
        begin, in_network = time.perf_counter(), 0.0
        for x, places in self._batches(images, corrupt, workers):
            started = time.perf_counter()
            scores = self._scores(x).cpu()
            in_network += time.perf_counter() - started
            for place, row in zip(places.tolist(), scores, strict=True):
                found[place] = self._named(images.where(place), row, top)
            tell(len(found) + len(corrupt.problems))
        missing = (place for place in range(len(images)) if place not in found)
        for place, problem in zip(missing, corrupt.problems, strict=True):  # both in the order of the images
            found[place] = Prediction(images.where(place), problem=problem)
        rows = [found[place] for place in range(len(images))]
        return Predictions(rows, time.perf_counter() - begin, in_network)

    def _batches(self, images: Brought, corrupt: CorruptImages, workers: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs of the network, and the places of their images."""
        _, height, width = self.inputs.input_size
        split = EncodedSplit(
            images,
            torch.arange(len(images)),
            self.inputs.stats,
            workers=workers if len(images) > ALONE * BATCH else 0,
            corrupt=corrupt,
            view=self.inputs.view,
            sides=(height, width),
        )
        return split.batches(BATCH, train=False, device=self.device)

    def _scores(self, x: Tensor) -> Tensor:
        with passing_overflow():
            logits = self.network(x)
        classes = len(self.inputs.classes)
        if not isinstance(logits, Tensor) or logits.shape != (len(x), classes):
            got = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise UserError(f"the network must give [{len(x)}, {classes}] scores, one a class, and gives {got}")
        return logits.float().softmax(1)

    def _named(self, image: str, scores: Tensor, top: int) -> Prediction:
        if not scores.isfinite().all():
            return Prediction(image, problem=OVERFLOWS)
        best = scores.topk(min(top, len(scores)))
        return Prediction(image, [self.inputs.classes[index] for index in best.indices.tolist()], best.values.tolist())


@dataclass(frozen=True)
class Predictions:
    """What is said of each image, and the seconds that all of them took, those in the network on their own."""

    rows: list[Prediction]
    seconds: float
    network_seconds: float

    @property
    def answered(self) -> int:
        return sum(not row.problem for row in self.rows)

    @property
    def images_per_second(self) -> float:
        return len(self.rows) / self.seconds

    @property
    def network_images_per_second(self) -> float:
        return self.answered / self.network_seconds if self.network_seconds else math.nan

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {"image": row.image, "problem": row.problem}
            if row.problem
            else {"image": row.image, "classes": row.classes, "scores": row.scores}
            for row in self.rows
        ]
        return {
            "images": rows,
            "answered": self.answered,
            "seconds": self.seconds,
            "images_per_second": self.images_per_second,
            "network_images_per_second": self.network_images_per_second if self.answered else None,
        }

    def write_parquet(self, file: Path) -> None:
        """A row an image: its best class and score, all the likeliest ones, and the problem where there is none."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [
            {
                "image": row.image,
                "class": row.classes[0] if row.classes else None,
                "score": row.scores[0] if row.scores else None,
                "classes": row.classes,
                "scores": row.scores,
                "problem": row.problem or None,
            }
            for row in self.rows
        ]
        texts, numbers = pa.list_(pa.string()), pa.list_(pa.float32())
        kinds = {"image": pa.string(), "class": pa.string(), "score": pa.float32()}
        schema = pa.schema(kinds | {"classes": texts, "scores": numbers, "problem": pa.string()})
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema), sink)
        write_atomically(file, sink.getvalue().to_pybytes())


class _Corrupt(CorruptImages):
    """Images that cannot be read do not stop the others; each is named among the answers."""

    def __init__(self) -> None:
        super().__init__(skip=True)
        self.problems: list[str] = []

    def meet(self, error: CorruptImage) -> None:
        self.problems.append(error.problem)


def open_predictor(
    place: Path, precision: Precision | None = None, *, data_dir: str | None = None, device: str = "cpu"
) -> Predictor:
    """The network of a run folder, of published weights by their name, or of a folder that ``deploy.save`` wrote.

    On a CPU it is prepared. ``precision`` None takes a prepared one as it is, and float32 otherwise.
    """
    if storage.is_prepared(place):
        return _prepared(place, precision, data_dir)
    run = find_run(place)
    inputs = inputs_of_run(run, data_dir, name=str(place))
    model = what_is_left(load_model(run))
    if device != "cpu" and precision in (None, "float32"):
        return Predictor(model.to(device), inputs, device, str(place))
    calibration = None
    if precision == "int8":
        recipe = Recipe.of_run(run)
        if recipe is None:
            raise UserError(f"{place} was not trained here, so there are no images to take ranges for int8 from")
        calibration = calibration_images(load_data_of_run(run, recipe, data_dir).train, count=RANGE_IMAGES)
    return Predictor(prepare_as(model, precision or "float32", calibration), inputs, "cpu", str(place))


def _prepared(folder: Path, precision: Precision | None, data_dir: str | None) -> Predictor:
    if data_dir is not None:
        raise UserError(f"{folder} is prepared and looks at no data set: leave `data_dir` out")
    inputs = storage.inputs_of(folder)
    if inputs is None:
        raise UserError(
            f"{folder} does not say how images become its input, nor what its classes are called. Write it again with "
            "'dgconv export', or in Python with dgconv.deploy.save(..., inputs=dgconv.data.Inputs(...))"
        )
    network = storage.load(folder)
    if precision not in (None, network.precision):
        raise UserError(
            f"{folder} was prepared in {network.precision}: leave `precision` out, or name the run folder that it is of"
        )
    return Predictor(network, inputs, "cpu", str(folder))


def inputs_of_run(run: RunFolder, data_dir: str | None = None, *, name: str = "") -> Inputs:
    """How images become the input of a run's network: as it wrote down, as its published card says, or, for one that is
    older than either, as its data set has it."""
    config = run.config
    if "images" in config and "classes" in config:
        values = {**config["images"], "classes": config["classes"], "input_size": list(config["input_size"])}
        return Inputs.from_values(values, str(run.config_file))
    if (card := list_cards().get(name)) is not None:
        values = {"input_size": card.input_size, "mean": card.mean, "std": card.std, "classes": card.classes}
        return Inputs.from_values(values | {"loses_margin": card.data == "folder"}, f"the card of {name}")
    recipe = Recipe.of_run(run)
    if recipe is None:
        raise UserError(f"{run.path} was not trained here, so what its input and its classes are is not known")
    return Inputs.of(load_data_of_run(run, recipe, data_dir))


def known_inputs(run: RunFolder, data_dir: str | None = None, *, name: str = "") -> Inputs | None:
    """:func:`inputs_of_run`, and None where nothing tells them any more."""
    try:
        return inputs_of_run(run, data_dir, name=name)
    except UserError:
        return None
