"""How long a network takes on this machine's CPU, in several forms and beside others."""

import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..deploy import prepare
from ..deploy.compile.prepare import check
from ..deploy.export.formats import try_images
from ..deploy.run.timing import median_split
from ..environment import usable_cores
from ..errors import UserError
from ..layers.select import dynamic_layers
from ..ops import native
from .forms import Form, Kind, Runner, all_forms, disagreement
from .result import Bench, FormTime, Measurement
from .timing import (
    FEWEST,
    check_positive,
    check_threads,
    describe_machine,
    quartiles,
    threads_restored,
    time_side_by_side,
)  # fmt: skip

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
    title: str,
    networks: dict[Kind, nn.Module],
    input_size: tuple[int, int, int],
    *,
    batch_sizes: tuple[int, ...] = (1,),
    threads: tuple[int, ...] = (),
    repeats: int | None = None,
    compile: bool = False,
    tell: Tell = lambda what, done, total: None,
) -> Bench:
    """Measure every form of some networks at every batch size and number of threads.

    Args:
        networks: by kind; the last is the one that the figures are about.
        threads: default one, and all cores.
    """
    check_positive("batch_sizes", batch_sizes)
    batches = [
        torch.randn(batch_size, *input_size, generator=torch.Generator().manual_seed(1)) for batch_size in batch_sizes
    ]
    return _bench(title, networks, batches, threads=threads, repeats=repeats, compile=compile, tell=tell)


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
    check_threads(threads)
    check_positive("repeats", (1 if repeats is None else repeats,))
    _, channels, height, width = batches[0].shape
    size, model = (channels, height, width), list(networks.values())[-1]
    measurements: list[Measurement] = []
    problems = [f"'prepared' is run by torch, for {reason}"] if (reason := native.why_not()) else []
    total = len(batches) * len(threads)
    with all_forms(networks, size, compile) as forms, threads_restored():
        for images in batches:
            for count in threads:
                tell(f"batch {len(images)}, {count} threads", len(measurements), total)
                torch.set_num_threads(count)
                seconds, missing, disagreements = _measure_forms(forms, count, images, repeats)
                problems += [f"batch {len(images)}: {problem}" for problem in disagreements]
                done, rows = len(next(iter(seconds.values()))), rows_of(forms, seconds, missing)
                split = median_split(prepare(model), images, FEWEST) if native.available() else {}
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


def rows_of(forms: list[Form], seconds: dict[Form, list[float]], missing: dict[Form, str]) -> list[FormTime]:
    """A row for each form; of those that differ in the layout alone, the faster one."""
    medians = {form: statistics.median(values) for form, values in seconds.items()}
    dense = [median for form, median in medians.items() if form.kind == "dense"]
    baseline = min(dense or [median for form, median in medians.items() if form.name == "torch"])
    rows = []
    for kind, name in dict.fromkeys((form.kind, form.name) for form in forms):
        same = [form for form in forms if (form.kind, form.name) == (kind, name)]
        timed = [form for form in same if form in medians]
        if not timed:
            rows.append(FormTime(kind, name, missing=missing[same[0]]))
            continue
        form = min(timed, key=lambda candidate: medians[candidate])
        median = medians[form]
        rows.append(FormTime(kind, name, form.layout, median, quartiles(seconds[form]), baseline / median))
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
    return time_side_by_side(calls, repeats), missing, disagreements


def _make(forms: list[Form], threads: int, images: Tensor) -> tuple[dict[Form, Runner], dict[Form, str]]:
    calls: dict[Form, Runner] = {}
    missing: dict[Form, str] = {}
    for form in forms:
        try:
            calls[form] = form.make(threads, images)
        except UserError as error:
            missing[form] = str(error)
    return calls, missing
