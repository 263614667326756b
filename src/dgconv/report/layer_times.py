"""Which layer of a prepared network takes how long: the time split of :mod:`dgconv.deploy`, step by step."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..analysis.run_folder import RunFolder
from ..deploy import PreparedModel, prepare
from ..deploy.graph import Conv, Linear
from ..deploy.program import NativeProgram
from ..environment import describe_environment
from ..errors import UserError
from ..models import load_model
from ..ops import structs
from .network import as_it_runs

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


def measure_layers(run: RunFolder, names: Collection[str], repeats: int = REPEATS) -> LayerTimes:
    """One test image through the prepared network, the median of several calls, for the layers of these names."""
    prepared = prepare(as_it_runs(load_model(run.folder)))  # the run's own may be on a GPU
    report = prepared.report()
    if report.left:
        raise UserError(f"parts of the prepared network run with torch, which tells no layers: {report.left[0].reason}")
    image = next(iter(run.data.test.batches(1, train=False)))[0]
    prepared(image)
    calls = [_time_once(prepared, image, names) for _ in range(repeats)]
    middle = {
        name: LayerTime(median(call[name].total for call in calls), median(call[name].deciding for call in calls))
        for name in calls[0]
    }
    call = sum(time.total for time in middle.values())
    middle.pop(REST, None)
    return LayerTimes(middle, call, describe_environment("cpu"), report.isa, repeats)


def _time_once(prepared: PreparedModel, image: Tensor, names: Collection[str]) -> dict[str, LayerTime]:
    stages: dict[str, Tensor] = defaultdict(lambda: torch.zeros(len(structs.STAGES), dtype=torch.float64))

    def measure(part: Any, values: dict[str, Any]) -> Tensor:
        x = values[part.segment.graph.input]
        for label, seconds in _time_program(part.program, x):
            stages[next((name for name in label.split(" + ") if name in names), REST)] += seconds
        return part.program(x)

    prepared._walk(image, measure)
    return {name: LayerTime(float(seconds.sum()), float(seconds[:-1].sum())) for name, seconds in stages.items()}


def _time_program(program: NativeProgram, x: Tensor) -> list[tuple[str, Tensor]]:
    """What each native step stands for, and the seconds of its stages."""
    plan = program._plan(1, *x.shape[1:])
    seconds = torch.zeros(len(plan.steps), len(structs.STAGES), dtype=torch.float64)
    plan.run(x.contiguous(), torch.empty(1, *plan.output_shape), seconds)
    # A concatenation can become several copies, or none; convolutions and linear maps stay what and where they are.
    labels = iter([step.label for step in program.graph.steps if isinstance(step, Conv | Linear)])
    kept = (structs.CONV, structs.DYNAMIC_CONV, structs.LINEAR)
    return [(next(labels) if step.kind in kept else REST, row) for step, row in zip(plan.steps, seconds, strict=True)]
