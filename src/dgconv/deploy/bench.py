"""How long a network takes on this machine's CPU: dense, with standard and with dynamic group convolution.

Repeats are interleaved: each one runs every form in turn, so that a machine that slows down slows all of them down.
Before the timed call there is a pause, and then the form runs untimed for a while: the threads of each runtime go on
spinning for some milliseconds after a call, on cores that the next runtime needs, and caches hold what others left.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..environment import describe_environment
from ..errors import UserError
from ..layers.select import dynamic_layers
from ..ops import native
from .bench_forms import Call, Form, Kind, all_forms, disagreement, package_version
from .bench_networks import Networks
from .prepare import prepare

ROUND_SECONDS = 8.0  # that the repeats of one batch size and number of threads take together, unless told how many
FEWEST, MOST = 5, 100  # repeats
PAUSE, GET_GOING = 0.01, 0.02  # seconds before a timed call
Tell = Callable[[str, int, int], None]  # what is done, how many parts of it, of how many


@dataclass(frozen=True)
class Row:
    """Seconds of one form, median and quartiles, and its speed-up over the fastest dense form; or why it has none."""

    kind: Kind
    form: str
    layout: str = ""
    median: float | None = None
    quartiles: tuple[float, float] | None = None
    speedup: float | None = None
    missing: str = ""


@dataclass(frozen=True)
class Measurement:
    """All forms at one batch size and number of threads. ``split`` says where the prepared DGC's time goes."""

    batch_size: int
    threads: int
    repeats: int
    rows: list[Row]
    split: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    model: str
    pruning_rate: float
    input_size: tuple[int, int, int]
    machine: dict[str, Any]
    measurements: list[Measurement]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_bench(
    networks: Networks,
    *,
    batch_sizes: tuple[int, ...] = (1,),
    threads: tuple[int, ...] = (),
    repeats: int | None = None,
    compile: bool = False,
    tell: Tell = lambda what, done, total: None,
) -> Bench:
    """Measure every form at every batch size and number of threads; default one thread, and all cores."""
    threads = threads or tuple(sorted({1, cores()}))
    for name, values in (
        ("batch sizes", batch_sizes),
        ("threads", threads),
        ("repeats", (1 if repeats is None else repeats,)),
    ):
        if not values or min(values) < 1:
            raise UserError(f"{name} must be at least 1, got {' '.join(map(str, values)) or 'none'}")
    measurements: list[Measurement] = []
    problems = [f"'prepared' is run by torch, for {reason}"] if (reason := native.why_not()) else []
    total = len(batch_sizes) * len(threads)
    with all_forms(networks, compile) as forms, _threads_restored():
        for batch_size in batch_sizes:
            images = torch.randn(batch_size, *networks.input_size, generator=torch.Generator().manual_seed(1))
            for count in threads:
                tell(f"batch {batch_size}, {count} threads", len(measurements), total)
                torch.set_num_threads(count)
                calls, missing = _make(forms, count, images)
                problems += [f"batch {batch_size}: {problem}" for problem in disagreement(calls)]
                seconds = _time(calls, repeats)
                measurements.append(
                    Measurement(
                        batch_size,
                        count,
                        len(next(iter(seconds.values()))),
                        rows_of(forms, seconds, missing),
                        _split(networks, images),
                    )
                )
        tell("done", total, total)
    rates = [layer.pruning_rate for _, layer in dynamic_layers(networks.dgc)]
    return Bench(
        model=networks.title,
        pruning_rate=sum(rates) / len(rates),
        input_size=networks.input_size,
        machine=describe_machine(),
        measurements=measurements,
        warnings=list(dict.fromkeys(problems)),
    )


def describe_machine() -> dict[str, Any]:
    """The header of the figures; None for what is not installed."""
    environment: dict[str, Any] = describe_environment("cpu")
    del environment["threads"]  # each measurement has its own
    packages = {name: package_version(name) for name in ("onnxruntime", "openvino")}
    return environment | {"cores": cores(), "dgconv": __version__, "native kernels": native.isa()} | packages


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def rows_of(forms: list[Form], seconds: dict[Form, list[float]], missing: dict[Form, str]) -> list[Row]:
    """A row for each form; of those that differ in the layout alone, the faster one."""
    medians = {form: statistics.median(values) for form, values in seconds.items()}
    best_dense = min(median for form, median in medians.items() if form.kind == "dense")
    rows = []
    for kind, name in dict.fromkeys((form.kind, form.name) for form in forms):
        same = [form for form in forms if (form.kind, form.name) == (kind, name)]
        timed = [form for form in same if form in medians]
        if not timed:
            rows.append(Row(kind, name, missing=missing[same[0]]))
            continue
        form = min(timed, key=lambda candidate: medians[candidate])
        median = medians[form]
        rows.append(Row(kind, name, form.layout, median, _quartiles(seconds[form]), best_dense / median))
    return rows


def _make(forms: list[Form], threads: int, images: Tensor) -> tuple[dict[Form, Call], dict[Form, str]]:
    calls: dict[Form, Call] = {}
    missing: dict[Form, str] = {}
    for form in forms:
        try:
            calls[form] = form.make(threads, images)
        except UserError as error:
            missing[form] = str(error)
    return calls, missing


def _time(calls: dict[Form, Call], repeats: int | None) -> dict[Form, list[float]]:
    seconds: dict[Form, list[float]] = {form: [] for form in calls}
    for call in calls.values():  # to warm up
        call()
    start = time.perf_counter()
    for call in calls.values():
        _settle(call)
        call()
    count = repeats or max(FEWEST, min(MOST, round(ROUND_SECONDS / (time.perf_counter() - start))))
    for _ in range(count):
        for form, call in calls.items():
            _settle(call)
            start = time.perf_counter()
            call()
            seconds[form].append(time.perf_counter() - start)
    return seconds


def _settle(call: Call) -> None:
    """Let the others come to rest and this form get going."""
    time.sleep(PAUSE)
    end = time.perf_counter() + GET_GOING
    call()
    while time.perf_counter() < end:
        call()


def _split(networks: Networks, images: Tensor, repeats: int = 5) -> dict[str, float]:
    """Median seconds of the parts of the prepared DGC network; nothing where they cannot be told apart."""
    if not native.available():
        return {}
    prepared = prepare(networks.dgc)
    prepared(images)
    splits = [prepared.time_split(images) for _ in range(repeats)]
    return {part: statistics.median(split.get(part, 0.0) for split in splits) for part in splits[0]}


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


@contextmanager
def _threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
