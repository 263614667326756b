"""A prepared network in int8: which steps, by what it costs in error and what it gains in time."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError
from ...ops import native
from ..graph import Conv
from ..run.prepared import PreparedModel
from .calibrate import Calibration, calibrate, iterate, plain, rounds_weights, takes_bytes
from .quantize import quantize

Evaluate = Callable[[PreparedModel], float]  # the error of a network, in percent
Progress = Callable[[str, int, int], Any]  # what is done, how many times it was, and will be

FEW_IMAGES = 8  # with fewer, ranges are guesses
PROBES = 16  # images on which steps are compared
TIMINGS = 9
LAST_TRIES = 0.25  # of the time is left for evaluations


def to_int8(
    float_model: PreparedModel,
    calibration: Any,
    *,
    evaluate: Evaluate | None = None,
    max_drop: float | None = None,
    seconds: float = 600.0,
    force: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> PreparedModel:
    """The network in int8, or as it was where that is no gain; ``.report()`` says what was decided, and why."""
    if calibration is None:
        raise UserError(
            "int8 needs images to learn the ranges of values from: give `calibration`, a tensor [N, C, height, width] "
            "or batches; a hundred or so, normalized as in training, without labels"
        )
    if (evaluate is None) != (max_drop is None):
        raise UserError(
            "`evaluate` and `max_drop` go together: a function of the network that returns its error in "
            "percent, and by how much that may rise"
        )
    if not native.available():
        return _kept(float_model, f"float32 is used: {native.why_not()}")
    batches = list(iterate(calibration, float_model.channels))
    notes = _remarks(batches)
    graph = plain(float_model.graph)
    if not any(isinstance(step, Conv) and takes_bytes(step) for step in graph.steps):
        return _kept(float_model, "float32 is used: no step of the network has a form in int8")
    with torch.no_grad():
        seen = calibrate(graph, _counted(batches, progress))
    model = _model(seen, frozenset(), float_model, notes)
    if model.bytes_between_programs:
        return _kept(float_model, "float32 is used: bytes would have to wait for steps that are left to torch")
    if evaluate is not None and max_drop is not None:
        model = _within_drop(seen, float_model, batches, evaluate, max_drop, seconds, progress, notes)
    if not force and (slower := _slower(model, float_model, batches[0][:1])):
        return _kept(float_model, *notes, slower)
    return model


def _kept(model: PreparedModel, *notes: str) -> PreparedModel:
    return PreparedModel(model.graph, model.inner, notes=notes)


def _model(seen: Calibration, in_floats: frozenset[str], like: PreparedModel, notes: list[str]) -> PreparedModel:
    return PreparedModel(quantize(seen, in_floats), like.inner, notes=tuple(notes))


def _remarks(batches: list[Tensor]) -> list[str]:
    images = sum(map(len, batches))
    notes = [f"ranges are those of {images} calibration image{'s' if images > 1 else ''}"]
    if images < FEW_IMAGES:
        notes[0] += "; more would make them safer"
    if all(float(batch.min()) == float(batch.max()) for batch in batches):
        raise UserError("all calibration images are of one colour; give images that are like those it will see")
    return notes


def _counted(batches: list[Tensor], progress: Progress) -> Any:
    for index, batch in enumerate(batches):
        progress("calibrating", index, len(batches))
        yield batch
    progress("calibrating", len(batches), len(batches))


def _within_drop(
    seen: Calibration,
    float_model: PreparedModel,
    batches: list[Tensor],
    evaluate: Evaluate,
    max_drop: float,
    seconds: float,
    progress: Progress,
    notes: list[str],
) -> PreparedModel:
    """Puts those steps back to float32 whose rounding moves the results most, twice as many each time, until the error
    is low enough or the time is up."""
    end = time.monotonic() + seconds
    goal = evaluate(float_model) + max_drop
    model = _model(seen, frozenset(), float_model, notes)
    error = evaluate(model)
    if error <= goal:
        return model
    ranked = _ranked(seen, float_model, batches, end - LAST_TRIES * seconds, progress)
    count = 1
    best, best_error, best_count = model, error, 0
    while best_error > goal and count // 2 < len(ranked) and time.monotonic() < end:
        count = min(count, len(ranked))
        progress("evaluating with steps in float32", count, len(ranked))
        model = _model(seen, frozenset(ranked[:count]), float_model, notes)
        if (error := evaluate(model)) < best_error:
            best, best_error, best_count = model, error, count
        count *= 2
    met = (
        "" if best_error <= goal else f"; the drop of {max_drop:g} was not met: {best_error:.2f} % against {goal:.2f} %"
    )
    return PreparedModel(
        best.graph, best.inner, notes=(*notes, f"{best_count} steps that hurt most are in float32{met}")
    )


def _ranked(
    seen: Calibration, float_model: PreparedModel, batches: list[Tensor], end: float, progress: Progress
) -> list[str]:
    """Steps with weights, by how much closer the results come where one is in float32; those not tried in time come
    last."""
    names = [step.output for step in seen.graph.steps if rounds_weights(step)]
    x = (
        torch.cat(batches)[:PROBES]
        if all(b.shape[1:] == batches[0].shape[1:] for b in batches)
        else batches[0][:PROBES]
    )
    expected = float_model(x)
    distances: dict[str, float] = {}
    for index, name in enumerate(names):
        progress("finding the steps that hurt", index, len(names))
        if time.monotonic() > end:
            break
        result = _model(seen, frozenset({name}), float_model, [])(x)
        distances[name] = float((result - expected).square().mean()) if isinstance(result, Tensor) else 0.0
    return sorted(distances, key=distances.__getitem__) + [name for name in names if name not in distances]


def _slower(model: PreparedModel, float_model: PreparedModel, x: Tensor) -> str | None:
    """Why to stay with float32, measured on one image. The least of several times is what a form takes: whatever else
    the machine does can only add to it."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(TIMINGS):
        for candidate, taken in zip((model, float_model), times, strict=True):
            start = time.perf_counter()
            candidate(x)
            taken.append(time.perf_counter() - start)
    ours, floats = (min(taken[1:]) * 1e3 for taken in times)
    if ours < floats:
        return None
    return (
        f"float32 is used: on this CPU ({native.isa()}) an image takes {floats:.2f} ms, and {ours:.2f} ms in int8; "
        "`force=True` uses int8 all the same"
    )
