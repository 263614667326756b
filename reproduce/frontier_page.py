"""What docs/frontier.md shows of the records of studies: their points, what each change was worth, and the verdicts."""

import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scipy.stats import ttest_ind_from_stats

from dgconv.compare.frontier import Frontier, PointResult

from .markdown import table

STUDY = "imagenette64"  # the one with all changes; the others repeat some of its points
BASE, PRECISION = "dgc75", "int8"
NOISE = 0.05
STATIC = ("dense", "groups", "pruned")


def read(root: Path, study: str) -> Frontier | None:
    file = root / "benchmarks" / "results" / f"frontier_{study}.json"
    return Frontier.from_dict(json.loads(file.read_text())) if file.exists() else None


def _sides(found: Frontier) -> list[str]:
    return list(dict.fromkeys(side for point in found.points for side in point.ms))


def _error(point: PointResult, precision: str = PRECISION) -> str:
    errors = point.errors(precision)
    if not errors:
        return ""
    spread = point.spread(precision)
    return f"{point.error(precision):.2f}" + (f" ± {spread:.2f}" if spread is not None else "")


def frontier_table(root: Path, study: str = STUDY) -> str:
    """Every point: error while it trained and deployed, and its milliseconds; what nothing beats is in bold."""
    found = read(root, study)
    if found is None:
        return "Not measured yet."
    sides = _sides(found)
    best = {side: found.best(PRECISION, side) for side in sides}
    heading = ["network", "family", "seeds", "error, trained", "float32", "int8"]
    heading += [f"ms {precision}, {side} px" for side in sides for precision in ("float32", "int8")]
    rows = []
    for point in sorted(found.points, key=lambda p: (STATIC.index(p.family) if p.family in STATIC else 9, p.name)):
        trained = sum(seed.error for seed in point.seeds) / len(point.seeds)
        cells = [f"`{point.name}`", point.family, str(len(point.seeds)), f"{trained:.2f}"]
        cells += [_error(point, "float32"), _error(point)]
        for side in sides:
            for precision in ("float32", "int8"):
                ms = point.ms.get(side, {}).get(precision)
                text = f"{ms:.2f}" if ms else ""
                cells.append(f"**{text}**" if ms and precision == PRECISION and point in best[side] else text)
        rows.append(cells)
    machine = found.machine
    note = (
        f"{found.title}. Trained on {'; '.join(found.trained_on)}. Timed on {machine['hardware']}, torch "
        f"{machine['torch']}, native kernels {machine['native kernels']}, {machine['date']}: one image, one thread, "
        "median; all networks in turn. int8 of what was deployed beside its training has trained weights, other times "
        "random ones; in bold, no other network is both faster and better in int8."
    )
    return f"{note}\n\n{table(heading, rows, left=2)}"


def frontier_changes(root: Path, study: str = STUDY) -> str:
    """One change at a time against DGC at 3/4, in int8 where it was deployed, otherwise as it was trained."""
    found = read(root, study)
    if found is None:
        return "Not measured yet."
    base = next(point for point in found.points if point.name == BASE)
    rows = []
    for point in found.points:
        if point.family != base.family or point is base:
            continue
        delta = _mean(point) - _mean(base)
        changed = {key: value for key, value in point.settings.items() if base.settings.get(key) != value}
        change = ", ".join(f"`{key} = {value}`" for key, value in changed.items()) or "model"
        rows.append([change, f"{_mean(point):.2f}", f"{delta:+.2f}", _sure(point, base), str(len(point.seeds))])
    rows.sort(key=lambda row: float(row[2]))
    heading = ["changed", "error", f"against `{BASE}`", "beyond noise", "seeds"]
    return table(heading, rows)


def _trained(point: PointResult) -> list[float]:
    return [seed.error for seed in point.seeds]


def _mean(point: PointResult) -> float:
    return statistics.mean(_trained(point))


def _sure(one: PointResult, other: PointResult, errors_of: Callable[[PointResult], list[float]] = _trained) -> str:
    """Welch's test; a single seed is taken to spread as the seeds of the other do."""
    both = [errors_of(one), errors_of(other)]
    spreads = [statistics.stdev(errors) for errors in both if len(errors) > 1]
    if not spreads:
        return "too few seeds"
    facts = []
    for errors in both:
        facts += [statistics.mean(errors), statistics.stdev(errors) if len(errors) > 1 else max(spreads), len(errors)]
    sure = bool(ttest_ind_from_stats(*facts, equal_var=len(spreads) == 1).pvalue < NOISE)
    return ("yes" if sure else "no") + ("" if len(spreads) == 2 else ", by one seed")


def frontier_verdict(root: Path, study: str = STUDY) -> str:
    """The best dynamic network against the best static one, at its error and at its time."""
    found = read(root, study)
    if found is None:
        return "Not measured yet."
    return "\n".join(line for side in _sides(found) for line in _verdicts(found, side))


def _verdicts(found: Frontier, side: str) -> list[str]:
    best = found.best(PRECISION, side)
    dynamic = [point for point in best if point.family not in STATIC]
    names = ", ".join(f"`{point.name}`" for point in best)
    who = f"of them dynamic: {', '.join(f'`{p.name}`' for p in dynamic)}." if dynamic else "none of them dynamic."
    nothing = f"- At {side} pixels in int8 nothing beats {names}; {who}"
    return [nothing, *(f"- {line}" for line in _against_static(found, side))]


def _against_static(found: Frontier, side: str) -> list[str]:
    there = [p for p in found.points if p.errors(PRECISION) and PRECISION in p.ms.get(side, {})]
    static, dynamic = [p for p in there if p.family in STATIC], [p for p in there if p.family == "dgc"]
    several = [p for p in dynamic if len(p.seeds) > 1] or dynamic
    return [_verdict(p, static, side) for p in sorted(several, key=lambda p: p.error(PRECISION))[:3]]


def _verdict(point: PointResult, static: list[PointResult], side: str) -> str:
    """A dynamic network against the fastest static one that is as good, or else against the best one."""
    as_good = [p for p in static if p.error(PRECISION) <= point.error(PRECISION)]
    if as_good:
        which, rival = "the fastest static network at least as good", min(as_good, key=lambda p: p.ms[side][PRECISION])
    else:
        which, rival = "the best static network", min(static, key=lambda p: p.error(PRECISION))
    ratio = rival.ms[side][PRECISION] / point.ms[side][PRECISION]
    sure = _sure(point, rival, lambda p: p.errors(PRECISION))
    return (
        f"`{point.name}` ({_said(point, side)}) against {which}, `{rival.name}` ({_said(rival, side)}): {ratio:.2f}x; "
        f"errors differ beyond noise: {sure}."
    )


def _said(point: PointResult, side: str) -> str:
    return f"{point.error(PRECISION):.2f} %, {point.ms[side][PRECISION]:.2f} ms"


def frontier_again(root: Path, study: str = STUDY, timed: str = "imagenette128") -> str:
    """The points of a study that a later one repeats, with the times that they took then at the first one's sizes."""
    found, later = read(root, study), read(root, timed)
    if found is None or later is None:
        return "Not measured yet."
    sides = [side for side in _sides(found) if side in _sides(later)]
    times = {point.name: (point.settings, point.ms) for point in later.points}
    points = [replace(p, ms=times[p.name][1]) for p in found.points if times.get(p.name, ({},))[0] == p.settings]
    again = replace(found, points=points, machine=later.machine)
    lines = [line for side in sides for line in _verdicts(again, side)]
    machine = later.machine
    return "\n".join([f"Times of {machine['hardware']}, {machine['native kernels']}, {machine['date']}:", "", *lines])


def frontier_repeat(root: Path, study: str) -> str:
    """Verdict and table of a study that repeats some points elsewhere."""
    return f"{frontier_verdict(root, study)}\n\n{frontier_table(root, study)}"
