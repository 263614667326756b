"""How long a network takes on this machine's CPU, in several forms and beside others."""

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import get_args

import torch
from torch import Tensor, nn

from ..deploy.compile.prepare import check
from ..deploy.export.formats import try_images
from ..deploy.precision import Precision
from ..deploy.run.timing import median_split
from ..environment import usable_cores
from ..errors import UserError
from ..layers.watch import measured_rate, tied_layers
from ..ops import native
from .forms import AGREE, Form, Kind, Prepared, all_forms, differences
from .result import Bench, FormTime, Measurement
from .runtimes.record import Make, Runner, runtime_versions
from .timing import (
    FEWEST,
    check_positive,
    check_threads,
    describe_machine,
    quartiles,
    threads_restored,
    time_side_by_side,
)  # fmt: skip

CALIBRATION_IMAGES = 32  # random ones; of images like those it will see, people take about 300
Tell = Callable[[str, int, int], None]  # what is done, how many parts of it, of how many


def measure(
    model: nn.Module,
    images: Tensor,
    *,
    dense: nn.Module | None = None,
    threads: int | tuple[int, ...] = (),
    repeats: int | None = None,
    precision: Precision | tuple[Precision, ...] = "float32",
    calibration: Tensor | None = None,
) -> Bench:
    """How long your own network takes on this machine's CPU, as torch runs it and prepared. ``print`` the result.

    Args:
        model: converted or not; in eval mode, float32, on the CPU; called with one tensor.
        images: a batch, [batch, channels, height, width]. What a dynamic network computes depends on the images, so
            real ones say more than random ones.
        dense: the network before it was converted, to compare with: in torch, ONNX Runtime, OpenVINO, ncnn (where they
            are installed) and prepared. Speed-ups are over the fastest of the others; without it, over torch.
        threads: a number of threads, or several; by default one, and all cores.
        repeats: timed calls of each form; by default as many as 8 seconds hold, at least 5.
        precision: "float32", "int8" or both; what is dense, in every runtime, is then quantized too.
        calibration: images for int8, a few hundred like those it will see; by default ``images``.
    """
    networks: dict[Kind, nn.Module] = {"dense": dense} if dense is not None else {}
    networks["model"] = model
    for network in networks.values():
        check(network)
    images = _checked_images("images", images)
    calibration = images if calibration is None else _checked_images("calibration", calibration)
    for network in networks.values():
        try_images(network, images)
        try_images(network, calibration[:1])
    if dense is not None:
        _refuse_unrelated(model, dense)
    return _bench(
        type(model).__name__,
        networks,
        [images],
        calibration=calibration,
        threads=(threads,) if isinstance(threads, int) else tuple(threads),
        precisions=(precision,) if isinstance(precision, str) else tuple(precision),
        repeats=repeats,
    )


def _refuse_unrelated(model: nn.Module, dense: nn.Module) -> None:
    """A network that is converted, pruned or built with other layers still calls most of its parameters the same."""
    names = [{name for name, _ in network.named_parameters()} for network in (dense, model)]
    if 2 * len(names[0] & names[1]) < len(names[0]):
        raise UserError(
            f"`dense` is to be the network that the model was made from, and this {type(dense).__name__} shares only "
            f"{len(names[0] & names[1])} of its {len(names[0])} parameters' names with the {type(model).__name__}. "
            "Copy the network before you convert it, or leave `dense` out"
        )


def _checked_images(name: str, images: Tensor) -> Tensor:
    is_batch = isinstance(images, Tensor) and images.dim() == 4 and len(images) > 0
    if not (is_batch and images.dtype == torch.float32 and images.is_cpu):
        got = f"{list(images.shape)}, {images.dtype}, {images.device}" if isinstance(images, Tensor) else repr(images)
        raise UserError(f"{name} must be a float32 tensor [batch, channels, height, width] on the CPU, got {got}")
    return images.detach()


def run_bench(
    title: str,
    networks: dict[Kind, nn.Module],
    input_size: tuple[int, int, int],
    *,
    batch_sizes: tuple[int, ...] = (1,),
    threads: tuple[int, ...] = (),
    precisions: tuple[Precision, ...] = ("float32",),
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
    return _bench(
        title,
        networks,
        [_random(batch_size, input_size, seed=1) for batch_size in batch_sizes],
        calibration=_random(CALIBRATION_IMAGES, input_size, seed=2),
        threads=threads,
        precisions=precisions,
        repeats=repeats,
        compile=compile,
        tell=tell,
    )


def _random(count: int, input_size: tuple[int, int, int], seed: int) -> Tensor:
    return torch.randn(count, *input_size, generator=torch.Generator().manual_seed(seed))


def _bench(
    title: str,
    networks: dict[Kind, nn.Module],
    batches: list[Tensor],
    *,
    calibration: Tensor,
    threads: tuple[int, ...],
    precisions: tuple[Precision, ...],
    repeats: int | None,
    compile: bool = False,
    tell: Tell = lambda what, done, total: None,
) -> Bench:
    """Every form of every network; the last network is the one that the figures are about."""
    threads = threads or tuple(sorted({1, usable_cores()}))
    check_threads(threads)
    check_positive("repeats", (1 if repeats is None else repeats,))
    precisions = _checked(precisions)
    _, channels, height, width = batches[0].shape
    size = (channels, height, width)
    measurements: list[Measurement] = []
    problems = [f"'prepared' is run by torch, for {reason}"] if (reason := native.why_not()) else []
    with all_forms(networks, size, calibration, precisions, compile) as forms, threads_restored():
        total = len(forms) + len(batches) * len(threads)
        ready, why_not = _get_ready(forms, lambda form, done: tell(f"getting ready: {form.title}", done, total))
        for images in batches:
            for count in threads:
                tell(f"batch {len(images)}, {count} threads", len(forms) + len(measurements), total)
                torch.set_num_threads(count)
                seconds, missing, gaps = _measure_forms(ready, networks, count, images, repeats)
                problems += [
                    f"batch {len(images)}: {problem}"
                    for problem in disagreements(gaps, partial(_tied, networks, images))
                ]
                done = len(next(iter(seconds.values())))
                rows, rivals = rows_of(forms, seconds, why_not | missing, gaps)
                last = ready.get(forms[-1])
                split = {}
                if isinstance(last, Prepared) and native.available():
                    split = median_split(last.model, images, FEWEST)
                measurements.append(Measurement(len(images), count, done, rows, split, rivals))
        tell("done", total, total)
    return Bench(
        model=title,
        pruning_rate=measured_rate(list(networks.values())[-1], batches[0]),
        input_size=size,
        machine=describe_machine() | runtime_versions(precisions),
        measurements=measurements,
        warnings=list(dict.fromkeys(problems)),
    )


def _checked(precisions: tuple[Precision, ...]) -> tuple[Precision, ...]:
    """Each once, in the order of the tables."""
    known = get_args(Precision)
    if not precisions or not set(precisions) <= set(known):
        raise UserError(f"`precision` must be {' or '.join(known)}, got {' '.join(map(str, precisions)) or 'none'}")
    return tuple(precision for precision in known if precision in precisions)


def _get_ready(forms: list[Form], tell: Callable[[Form, int], None]) -> tuple[dict[Form, Make], dict[Form, str]]:
    """What makes calls of each form, and why others have none."""
    ready: dict[Form, Make] = {}
    why_not: dict[Form, str] = {}
    for done, form in enumerate(forms):
        tell(form, done)
        try:
            ready[form] = form.get_ready()
        except UserError as error:
            why_not[form] = str(error)
    return ready, why_not


def _measure_forms(
    ready: dict[Form, Make], networks: dict[Kind, nn.Module], threads: int, images: Tensor, repeats: int | None
) -> tuple[dict[Form, list[float]], dict[Form, str], dict[Form, float]]:
    """Seconds of each form, what is missing, and how far results are from torch's.

    All calls are gone before the next are made, the last made first: OpenVINO gives the thread a stack for signals with
    each network, takes it back when that goes, and puts the one before in its place. Out of turn, that is memory freed
    long ago, and the next Ctrl-C ends the process.
    """
    calls: dict[Form, Runner] = {}
    missing: dict[Form, str] = {}
    try:
        for form, make in ready.items():
            try:
                calls[form] = make(threads, images)
            except UserError as error:
                missing[form] = str(error)
        gaps = differences(calls, networks, images)
        return time_side_by_side(calls, repeats), missing, gaps
    finally:
        while calls:
            calls.popitem()


def disagreements(gaps: dict[Form, float], why: Callable[[Form], str] = lambda form: "") -> list[str]:
    """A warning for each form that computes something else than torch, and why, where that is known."""
    told = []
    for form, gap in gaps.items():
        name = " ".join(filter(None, (form.title, form.layout)))
        if math.isnan(gap):
            told.append(f"{name} cannot be compared with torch: there are logits that are NaN or infinite")
        elif gap > AGREE[form.precision]:
            told.append(f"{name} differs from torch by {gap:.1g} of the largest logit{why(form)}")
    return told


def _tied(networks: dict[Kind, nn.Module], images: Tensor, form: Form) -> str:
    """Whether a choice between equal saliencies explains it."""
    if not (tied := tied_layers(networks[form.kind], images)):
        return ""
    more = f" and {len(tied) - 1} more" if len(tied) > 1 else ""
    return (
        f". These are ties: in {tied[0]}{more}, channels that are kept and channels that are left out have the same "
        "saliency, and rounding decides between them. Training tells them apart"
    )


def rows_of(
    forms: list[Form], seconds: dict[Form, list[float]], missing: dict[Form, str], gaps: dict[Form, float]
) -> tuple[list[FormTime], dict[Precision, str]]:
    """A row for each form, of those that differ in the layout alone the faster one; and the fastest rivals' names."""
    medians = {form: statistics.median(values) for form, values in seconds.items()}
    has_dense = any(form.kind == "dense" for form in forms)
    fastest: dict[Precision, Form] = {}
    for precision in dict.fromkeys(form.precision for form in forms):
        rivals = [form for form in medians if form.precision == precision and form.is_rival]
        candidates = rivals if has_dense else [form for form in medians if form.name == "torch"]
        if candidates:
            fastest[precision] = min(candidates, key=lambda form: medians[form])
    rows = []
    for kind, name, precision in dict.fromkeys((form.kind, form.name, form.precision) for form in forms):
        same = [form for form in forms if (form.kind, form.name, form.precision) == (kind, name, precision)]
        timed = [form for form in same if form in medians]
        if not timed:
            rows.append(FormTime(kind, name, missing=missing[same[0]], precision=precision))
            continue
        form = min(timed, key=lambda candidate: medians[candidate])
        speedup = medians[fastest[precision]] / medians[form] if precision in fastest else None
        times = (medians[form], quartiles(seconds[form]), speedup)
        rows.append(FormTime(kind, name, form.layout, *times, precision=precision, difference=gaps[form]))
    return rows, {precision: form.name for precision, form in fastest.items()}
