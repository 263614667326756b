"""How long one image takes in each of several networks, measured side by side on one thread of this CPU."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..deploy import prepare
from ..deploy.bench import quartiles
from ..deploy.prepared import PreparedModel
from ..environment import one_thread

SECONDS = 20.0  # that all repeats take together
FEWEST, MOST = 5, 200  # repeats
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
    """Batch 1, one thread, real images in turn: what a dynamic network computes depends on the image.

    Repeats are interleaved, so that a machine that slows down slows all networks down; each call is timed right after
    an untimed one of the same network, whose weights are then in the cache.
    """
    prepared = {name: prepare(network) for name, network in networks.items()}
    seconds: dict[str, list[float]] = {name: [] for name in prepared}
    with one_thread():
        differences = {name: _disagreement(networks[name], prepared[name], images) for name in prepared}
        started = time.perf_counter()
        for repeat in range(MOST):
            image = images[repeat % len(images)][None]
            for name, network in prepared.items():
                network(image)
                start = time.perf_counter()
                network(image)
                seconds[name].append(time.perf_counter() - start)
            if repeat + 1 >= FEWEST and time.perf_counter() - started > SECONDS:
                break
    return {
        name: Latency(statistics.median(values), quartiles(values), _native_share(prepared[name]), differences[name])
        for name, values in seconds.items()
    }


def _disagreement(network: nn.Module, prepared: PreparedModel, images: Tensor) -> float:
    """The middle one over the images: where a method cuts off, rounding may turn a decision and with it an image."""
    expected, got = network(images), prepared(images)
    return float(((got - expected).abs().amax(1) / expected.abs().amax(1)).median())


def _native_share(prepared: PreparedModel) -> float:
    report = prepared.report()
    return len(report.native) / len(report.rows)
