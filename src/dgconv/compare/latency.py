"""How long one image takes in each of several networks, measured side by side on one thread of this CPU."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn

from ..bench.timing import quartiles, time_side_by_side
from ..deploy import PreparedModel, prepare
from ..environment import one_thread

SECONDS = 20.0  # that all repeats take together
AGREE = 1e-2  # of the largest logit


@dataclass(frozen=True)
class Latency:
    """Seconds; ``native`` is the share of the prepared network's steps that torch does not run."""

    median: float
    quartiles: tuple[float, float]
    native: float
    disagreement: float  # of the prepared network with the original, in units of the largest logit


@torch.no_grad()
def measure_latencies(networks: Mapping[str, nn.Module], images: Tensor) -> dict[str, Latency]:
    """Batch 1, one thread, real images in turn: what a dynamic network computes depends on the image."""
    prepared = {name: prepare(network) for name, network in networks.items()}
    native = {name: _native_share(network) for name, network in prepared.items()}
    with one_thread():
        differences = {name: _disagreement(networks[name], prepared[name], images) for name in prepared}
        seconds = time_side_by_side({n: _in_turn(network, images) for n, network in prepared.items()}, seconds=SECONDS)
    return {
        name: Latency(statistics.median(values), quartiles(values), native[name], differences[name])
        for name, values in seconds.items()
    }


def _in_turn(network: PreparedModel, images: Tensor) -> Callable[[], Any]:
    one_by_one = cycle(images.split(1))
    return lambda: network(next(one_by_one))


def _disagreement(network: nn.Module, prepared: PreparedModel, images: Tensor) -> float:
    """The middle one over the images: where a method cuts off, rounding may turn a decision and with it an image."""
    expected, got = network(images), prepared(images)
    return float(((got - expected).abs().amax(1) / expected.abs().amax(1)).median())


def _native_share(prepared: PreparedModel) -> float:
    report = prepared.report()
    return len(report.native) / len(report.rows)
