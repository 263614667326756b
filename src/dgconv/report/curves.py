"""Curves over the epochs, several runs in one chart: geometry of small SVG charts that follow the page's colours."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

WIDTH, HEIGHT = 480, 230
LEFT, RIGHT, TOP, BOTTOM = 48, 460, 10, 196  # of the area that curves are drawn in
TICKS = 5  # on an axis, at most one more

Epochs = list[dict[str, Any]]  # the metrics of a run


@dataclass(frozen=True)
class Curve:
    """One line of a chart. Solid: as measured on test images. Dashed: on training images, or as scheduled."""

    run: int
    label: str
    dashed: bool
    epochs: list[int]
    values: list[float | None]
    path: str = ""  # as SVG has it


class Tick(NamedTuple):
    place: float
    text: str


@dataclass(frozen=True)
class Chart:
    title: str
    curves: list[Curve]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    last_epoch: int


@dataclass(frozen=True)
class Subject:
    """What a chart is about: the keys in the metrics of its solid and its dashed curve, each with a label."""

    title: str
    solid: tuple[str, str]
    dashed: tuple[str, str] | None = None
    is_log: bool = False


SUBJECTS = (
    Subject("Error, %, log scale", ("test_error", "test"), ("train_error", "training"), is_log=True),
    Subject("Loss, log scale", ("test_loss", "test"), ("train_loss", "training"), is_log=True),
    Subject("Share of the channels left out", ("pruned_share", "measured"), ("target_pruned_share", "schedule")),
    Subject("Learning rate", ("learning_rate", "")),
)


def draw_charts(runs: Sequence[Epochs]) -> list[Chart]:
    """All subjects that any run has; a dense network, for one, leaves no channels out."""
    return [_draw(subject, curves) for subject in SUBJECTS if (curves := _curves(subject, runs))]


def _curves(subject: Subject, runs: Sequence[Epochs]) -> list[Curve]:
    curves = []
    for number, epochs in enumerate(runs):
        if all(_value(line, subject.solid[0], subject.is_log) is None for line in epochs):
            continue
        for pair in (subject.dashed, subject.solid):  # the solid ones on top
            if pair:
                values = [_value(line, pair[0], subject.is_log) for line in epochs]
                curves.append(Curve(number, pair[1], pair is subject.dashed, [e["epoch"] for e in epochs], values))
    return curves


def _value(line: dict[str, Any], key: str, is_log: bool) -> float | None:
    """A value to draw; None where there is none, or one that went beyond all bounds."""
    value = line.get(key)
    return value if value is not None and math.isfinite(value) and not (is_log and value <= 0) else None


def _draw(subject: Subject, curves: list[Curve]) -> Chart:
    values = [value for curve in curves for value in curve.values if value is not None]
    last_epoch = max(curve.epochs[-1] for curve in curves)
    x_at = _scale(0, last_epoch, LEFT, RIGHT)
    y_numbers = log_ticks(min(values), max(values)) if subject.is_log else ticks(max(values))
    low, high = min(*y_numbers, *values), max(*y_numbers, *values)
    y_at = _log_scale(low, high, BOTTOM, TOP) if subject.is_log else _scale(low, high, BOTTOM, TOP)
    return Chart(
        title=subject.title,
        curves=[Curve(**{**vars(curve), "path": _path(curve, x_at, y_at)}) for curve in curves],
        x_ticks=[Tick(x_at(n), f"{n:g}") for n in ticks(last_epoch) if n <= last_epoch and n == int(n)],
        y_ticks=[Tick(y_at(n), f"{n:g}") for n in y_numbers],
        last_epoch=last_epoch,
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """A linear map that takes low to start and high to end."""
    span = (high - low) or 1
    return lambda value: start + (end - start) * (value - low) / span


def _log_scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    place = _scale(math.log(low), math.log(high), start, end)
    return lambda value: place(math.log(value))


def _path(curve: Curve, x_at: Callable[[float], float], y_at: Callable[[float], float]) -> str:
    """Broken where values are missing. A point alone is a line of no length, which round ends make a dot."""
    parts, is_drawing = [], False
    for epoch, value in zip(curve.epochs, curve.values, strict=True):
        if value is not None:
            parts.append(f"{'L' if is_drawing else 'M'}{x_at(epoch):.1f} {y_at(value):.1f}" + "h0" * (not is_drawing))
        is_drawing = value is not None
    return "".join(parts)


def ticks(high: float) -> list[float]:
    """Round numbers from 0 to the first that is not below ``high``."""
    if high <= 0:
        return [0.0, 1.0]
    rough = high / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [round(step * number, 12) for number in range(math.ceil(high / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; where these are few, also twice and five times them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    every = [round(10.0**power * factor, 12) for power in range(first, last + 1) for factor in factors]
    inside = [number for number in every if low <= number <= high]
    if len(inside) > 1:
        return inside
    return [max(n for n in every if n <= low), min(n for n in every if n >= high and n > low)]
