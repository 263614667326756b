"""How long a network takes on this machine's CPU, in several forms and beside others.

Repeats are interleaved: each one runs every form in turn, so that a machine that slows down slows all of them down.
Before the timed call there is a pause, and then the form runs untimed for a while: the threads of each runtime go on
spinning for some milliseconds after a call, on cores that the next runtime needs, and caches hold what others left.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..environment import describe_environment, usable_cores
from ..errors import UserError
from ..layers.select import dynamic_layers
from ..ops import native
from .bench_forms import Call, Form, Kind, all_forms, disagreement, package_version
from .bench_result import Bench, Measurement, Row
from .export import try_images
from .prepare import check, prepare

if TYPE_CHECKING:
    from .bench_networks import Networks  # which knows all of training

THREADS_A_CORE = 16  # at most: where many more cannot be started, OpenMP ends the process
ROUND_SECONDS = 8.0  # that the repeats of one batch size and number of threads take together, unless told how many
FEWEST, MOST = 5, 100  # repeats
PAUSE, GET_GOING = 0.01, 0.02  # seconds before a timed call
Tell = Callable[[str, int, int], None]  # what is done, how many parts of it, of how many


def measure(
    model: nn.Module,
    images: Tensor,
    *,
    dense: nn.Module | None = None,
    threads: int | tuple[int, ...] = (),
    repeats: int | None = None,
) -> Bench:
    """How long your own network takes on this machine's CPU, as torch runs it and prepared. ``print`` the result.

    Args:
        model: converted or not; in eval mode, float32, on the CPU; called with one tensor.
        images: a batch, [batch, channels, height, width]. What a dynamic network computes depends on the images, so
            real ones say more than random ones.
        dense: the network before it was converted, to compare with: in torch, ONNX Runtime, OpenVINO (where they are
            installed) and prepared. Without it, speed-ups are over torch.
        threads: a number of threads, or several; by default one, and all cores.
        repeats: timed calls of each form; by default as many as 8 seconds hold, at least 5.
    """
    networks: dict[Kind, nn.Module] = {"dense": dense} if dense is not None else {}
    networks["model"] = model
    for network in networks.values():
        check(network)
    is_batch = isinstance(images, Tensor) and images.dim() == 4 and len(images) > 0
    if not (is_batch and images.dtype == torch.float32 and images.is_cpu):
        got = f"{list(images.shape)}, {images.dtype}, {images.device}" if isinstance(images, Tensor) else repr(images)
        raise UserError(f"images must be a float32 tensor [batch, channels, height, width] on the CPU, got {got}")
    images = images.detach()
    for network in networks.values():
        try_images(network, images)
    threads = (threads,) if isinstance(threads, int) else tuple(threads)
    return _bench(type(model).__name__, networks, [images], threads=threads, repeats=repeats)


def run_bench(
    networks: "Networks",
    *,
    batch_sizes: tuple[int, ...] = (1,),
    threads: tuple[int, ...] = (),
    repeats: int | None = None,
    compile: bool = False,
    tell: Tell = lambda what, done, total: None,
) -> Bench:
    """Measure every form at every batch size and number of threads; default one thread, and all cores."""
    _check_positive("batch sizes", batch_sizes)
    by_kind: dict[Kind, nn.Module] = {"dense": networks.dense, "sgc": networks.sgc, "dgc": networks.dgc}
    batches = [
        torch.randn(batch_size, *networks.input_size, generator=torch.Generator().manual_seed(1))
        for batch_size in batch_sizes
    ]
    return _bench(networks.title, by_kind, batches, threads=threads, repeats=repeats, compile=compile, tell=tell)


def _bench(
    title: str,
    networks: dict[Kind, nn.Module],
    batches: list[Tensor],
    *,
    threads: tuple[int, ...],
    repeats: int | None,
    compile: bool = False,
    tell: Tell = lambda what, done, total: None,
) -> Bench:
    """Every form of every network; the last network is the one that the figures are about."""
    threads = threads or tuple(sorted({1, usable_cores()}))
    _check_positive("threads", threads)
    if max(threads) > (most := THREADS_A_CORE * usable_cores()):
        raise UserError(f"threads must be at most {most} on this machine of {usable_cores()} cores, got {max(threads)}")
    _check_positive("repeats", (1 if repeats is None else repeats,))
    _, channels, height, width = batches[0].shape
    size, model = (channels, height, width), list(networks.values())[-1]
    measurements: list[Measurement] = []
    problems = [f"'prepared' is run by torch, for {reason}"] if (reason := native.why_not()) else []
    total = len(batches) * len(threads)
    with all_forms(networks, size, compile) as forms, _threads_restored():
        for images in batches:
            for count in threads:
                tell(f"batch {len(images)}, {count} threads", len(measurements), total)
                torch.set_num_threads(count)
                seconds, missing, disagreements = _measure_forms(forms, count, images, repeats)
                problems += [f"batch {len(images)}: {problem}" for problem in disagreements]
                done, rows = len(next(iter(seconds.values()))), rows_of(forms, seconds, missing)
                split = median_split(model, images, FEWEST) if native.available() else {}
                measurements.append(Measurement(len(images), count, done, rows, split))
        tell("done", total, total)
    rates = [layer.pruning_rate for _, layer in dynamic_layers(model)]
    return Bench(
        model=title,
        pruning_rate=sum(rates) / len(rates) if rates else None,
        input_size=size,
        machine=describe_machine(),
        measurements=measurements,
        warnings=list(dict.fromkeys(problems)),
    )


def _check_positive(name: str, values: tuple[int, ...]) -> None:
    if not values or not all(isinstance(value, int) and value >= 1 for value in values):
        raise UserError(f"{name} must be at least 1, got {' '.join(map(str, values)) or 'none'}")


def describe_machine() -> dict[str, Any]:
    """The header of the figures; None for what is not installed."""
    environment: dict[str, Any] = describe_environment("cpu")
    del environment["threads"]  # each measurement has its own
    packages = {name: package_version(name) for name in ("onnxruntime", "openvino")}
    return environment | {"cores": usable_cores(), "dgconv": __version__, "native kernels": native.isa()} | packages


def rows_of(forms: list[Form], seconds: dict[Form, list[float]], missing: dict[Form, str]) -> list[Row]:
    """A row for each form; of those that differ in the layout alone, the faster one."""
    medians = {form: statistics.median(values) for form, values in seconds.items()}
    dense = [median for form, median in medians.items() if form.kind == "dense"]
    baseline = min(dense or [median for form, median in medians.items() if form.name == "torch"])
    rows = []
    for kind, name in dict.fromkeys((form.kind, form.name) for form in forms):
        same = [form for form in forms if (form.kind, form.name) == (kind, name)]
        timed = [form for form in same if form in medians]
        if not timed:
            rows.append(Row(kind, name, missing=missing[same[0]]))
            continue
        form = min(timed, key=lambda candidate: medians[candidate])
        median = medians[form]
        rows.append(Row(kind, name, form.layout, median, quartiles(seconds[form]), baseline / median))
    return rows


def _measure_forms(
    forms: list[Form], threads: int, images: Tensor, repeats: int | None
) -> tuple[dict[Form, list[float]], dict[Form, str], list[str]]:
    """Seconds of each form, what is missing, and what disagrees.

    All calls are gone before the next are made: OpenVINO gives the thread a stack for signals with each network, takes
    it back when that goes, and puts the one before in its place. Out of turn, that is memory freed long ago, and the
    next Ctrl-C ends the process.
    """
    calls, missing = _make(forms, threads, images)
    disagreements = disagreement(calls)
    return _time(calls, repeats), missing, disagreements


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


def median_split(model: nn.Module, images: Tensor, repeats: int) -> dict[str, float]:
    """Seconds of the parts of the prepared network."""
    prepared = prepare(model)
    prepared(images)
    splits = [prepared.time_split(images) for _ in range(repeats)]
    return {part: statistics.median(split.get(part, 0.0) for split in splits) for part in splits[0]}


def quartiles(values: list[float]) -> tuple[float, float]:
    """The first and the third."""
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
