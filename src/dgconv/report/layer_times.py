"""Which layer of a prepared network takes how long: the time split of :mod:`dgconv.deploy`, step by step."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from ..analysis.trained_run import TrainedRun
from ..deploy import PreparedModel, prepare
from ..environment import describe_environment
from ..errors import UserError
from ..pruning import what_is_left

REPEATS = 15
REST = ""  # the name under which everything is that is no layer of the list


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


def measure_layers(run: TrainedRun, names: Collection[str]) -> LayerTimes:
    """One test image through the prepared network, the median of several calls, for the layers of these names."""
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
