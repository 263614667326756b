"""What docs/frontier.md shows of the record of a study: its points, what each change was worth, and the verdict."""

import json
from pathlib import Path

from scipy.stats import ttest_ind_from_stats

from dgconv.compare.frontier import Frontier, PointResult

from .markdown import table

RECORD = Path("benchmarks") / "results" / "frontier_imagenette64.json"
BASE, PRECISION = "dgc75", "int8"
NOISE = 0.05
STATIC = ("dense", "groups", "pruned")


def read(root: Path) -> Frontier | None:
    file = root / RECORD
    return Frontier.from_dict(json.loads(file.read_text())) if file.exists() else None


def _sides(found: Frontier) -> list[str]:
    return list(dict.fromkeys(side for point in found.points for side in point.ms))


def _error(point: PointResult, precision: str = PRECISION) -> str:
    errors = point.errors(precision)
    if not errors:
        return ""
    spread = point.spread(precision)
    return f"{point.error(precision):.2f}" + (f" ± {spread:.2f}" if spread is not None else "")


def frontier_table(root: Path) -> str:
    """Every point: error while it trained and deployed, and its milliseconds; what nothing beats is in bold."""
    found = read(root)
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


def frontier_changes(root: Path) -> str:
    """One change at a time against DGC at 3/4, in int8 where it was deployed, otherwise as it was trained."""
    found = read(root)
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
    errors = _trained(point)
    return sum(errors) / len(errors)


def _spread(point: PointResult) -> float | None:
    errors = _trained(point)
    mean = _mean(point)
    return (sum((error - mean) ** 2 for error in errors) / (len(errors) - 1)) ** 0.5 if len(errors) > 1 else None


def _sure(one: PointResult, other: PointResult) -> str:
    """Welch's test; a single seed is taken to spread as the seeds of the other do."""
    spreads = [spread for spread in (_spread(one), _spread(other)) if spread is not None]
    if not spreads:
        return "too few seeds"
    facts = [
        fact for point in (one, other) for fact in (_mean(point), _spread(point) or max(spreads), len(point.seeds))
    ]
    sure = bool(ttest_ind_from_stats(*facts, equal_var=len(spreads) == 1).pvalue < NOISE)
    return ("yes" if sure else "no") + ("" if len(spreads) == 2 else ", by one seed")


def frontier_verdict(root: Path) -> str:
    """The best dynamic network against the best static one, at its error and at its time."""
    found = read(root)
    if found is None:
        return "Not measured yet."
    lines = []
    for side in _sides(found):
        best = found.best(PRECISION, side)
        dynamic = [point for point in best if point.family not in STATIC]
        names = ", ".join(f"`{point.name}`" for point in best)
        lines.append(
            f"- At {side} pixels in int8 nothing beats {names}; "
            + (f"of them dynamic: {', '.join(f'`{p.name}`' for p in dynamic)}." if dynamic else "none of them dynamic.")
        )
        lines += [f"- {line}" for line in _against_static(found, side)]
    return "\n".join(lines)


def _against_static(found: Frontier, side: str) -> list[str]:
    there = [p for p in found.points if p.errors(PRECISION) and PRECISION in p.ms.get(side, {})]
    static, dynamic = [p for p in there if p.family in STATIC], [p for p in there if p.family == "dgc"]
    several = [p for p in dynamic if len(p.seeds) > 1] or dynamic
    lines = []
    for point in sorted(several, key=lambda p: p.error(PRECISION))[:3]:
        as_good = [p for p in static if p.error(PRECISION) <= point.error(PRECISION)]
        rival = min(as_good, key=lambda p: p.ms[side][PRECISION], default=None)
        if rival is None:
            lines.append(f"`{point.name}` has a lower error than every static network.")
            continue
        ratio = rival.ms[side][PRECISION] / point.ms[side][PRECISION]
        lines.append(
            f"`{point.name}` ({point.error(PRECISION):.2f} %, {point.ms[side][PRECISION]:.2f} ms) against the fastest "
            f"static network at least as good, `{rival.name}` ({rival.error(PRECISION):.2f} %, "
            f"{rival.ms[side][PRECISION]:.2f} ms): {ratio:.2f}x."
        )
    return lines
