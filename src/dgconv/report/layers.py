"""The table of layers: what each costs, keeps and takes."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from statistics import median

from torch import Tensor

from ..analysis.frozen import Worth, some_images, worth_by_layer
from ..analysis.trained_run import TrainedRun
from ..cost.macs import MacCount
from ..data.base import Batch
from ..deploy import PreparedModel, prepare
from ..environment import describe_environment
from ..errors import UserError
from ..pruning import what_is_left
from .missing import Missing, attempt
from .result import count_network

REPEATS = 15  # of a call that is timed
REST = ""  # the name under which everything is that is no layer of the list


@dataclass(frozen=True)
class Layer:
    number: int
    name: str
    kind: str
    shape: str  # of the output
    size: int
    macs: float
    dense_macs: float
    kept_share: float | None
    seconds: float | None
    deciding: float | None  # seconds of it, for a dynamic layer
    worth: Worth | None


@dataclass(frozen=True)
class LayerTime:
    """Seconds: ``deciding`` is what pooling, generator and selection of a dynamic layer take of the ``total``."""

    total: float
    deciding: float


@dataclass(frozen=True)
class LayerTimes:
    layers: dict[str, LayerTime]
    call: float  # seconds of everything, pooling and concatenations included
    machine: dict[str, str | int]
    instructions: str
    repeats: int

    @property
    def in_layers(self) -> float:
        return sum(layer.total for layer in self.layers.values())

    @property
    def deciding(self) -> float:
        return sum(layer.deciding for layer in self.layers.values())


@dataclass(frozen=True)
class LayerTable:
    layers: list[Layer]
    count: MacCount
    times: LayerTimes | None
    images_recorded: int  # 0: kept shares are those of the options, or of the images that MACs were measured on
    images_frozen: int  # on which it was measured what choices are worth

    @property
    def shows_kept(self) -> bool:
        return any(layer.kept_share is not None for layer in self.layers)

    @property
    def decides(self) -> bool:
        """Whether any layer takes time to choose its channels."""
        return any(layer.deciding is not None for layer in self.layers)


def layers_of(run: TrainedRun, missing: list[Missing]) -> LayerTable:
    """The table of a run's layers; without weights or data, what follows from the options."""
    count = count_network(run, "paper")
    kept: dict[str, float] = {}
    worth: dict[str, Worth] = {}
    frozen: list[Batch] | None = None
    if run.is_dynamic:
        recording = attempt("kept shares recorded on the test images", lambda: run.recording, missing)
        kept = {name: 1 - layer.pruned_share for name, layer in recording.layers.items()} if recording else {}
        if recording:
            frozen = attempt("what choices are worth", lambda: some_images(run.model, run.data, run.device), missing)
            worth = worth_by_layer(run.model, recording, frozen) if frozen else {}
    times = attempt("time by layer", lambda: measure_layers(run, {layer.name for layer in count.layers}), missing)
    layers = []
    for number, layer in enumerate(count.layers, start=1):
        time = times.layers.get(layer.name) if times else None
        layers.append(
            Layer(
                number=number,
                name=layer.name,
                kind=layer.kind,
                shape=" × ".join(map(str, layer.output)),
                size=prod(layer.output),
                macs=layer.macs,
                dense_macs=layer.dense_macs,
                kept_share=kept.get(layer.name, layer.kept_share),
                seconds=time.total if time else None,
                deciding=time.deciding if time and time.deciding else None,
                worth=worth.get(layer.name),
            )
        )
    images_frozen = sum(len(labels) for _, labels in frozen or ())
    return LayerTable(layers, count, times, run.recording.images if kept else 0, images_frozen)


def measure_layers(run: TrainedRun, names: Collection[str]) -> LayerTimes:
    """Which layer takes how long: one test image through the prepared network, the median of several calls."""
    prepared = prepare(what_is_left(run.model_on_cpu))
    report = prepared.report()
    if report.left:
        raise UserError(f"parts of the prepared network run with torch, which tells no layers: {report.left[0].reason}")
    image = next(iter(run.data.test.batches(1, train=False)))[0]
    prepared(image)
    calls = [_time_once(prepared, image, names) for _ in range(REPEATS)]
    middle = {
        name: LayerTime(median(call[name].total for call in calls), median(call[name].deciding for call in calls))
        for name in calls[0]
    }
    call = sum(time.total for time in middle.values())
    middle.pop(REST, None)
    return LayerTimes(middle, call, describe_environment("cpu"), report.isa, REPEATS)


def _time_once(prepared: PreparedModel, image: Tensor, names: Collection[str]) -> dict[str, LayerTime]:
    total: dict[str, float] = defaultdict(float)
    deciding: dict[str, float] = defaultdict(float)
    for step in prepared.time_by_step(image):
        name = next((layer for layer in step.label.split(" + ") if layer in names), REST)
        total[name] += step.total
        deciding[name] += step.total - step.stages["compute"]
    return {name: LayerTime(total[name], deciding[name]) for name in total}
