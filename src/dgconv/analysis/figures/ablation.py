"""Error over the number of heads, and over the pruning rate, each with the other one fixed (the sixth figure)."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from ..trained_run import TrainedRun
from .style import BLUE, GREEN, Drawing, about_seeds, entitle, in_house_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER_HEADS = (1, 2, 4, 8)
PAPER_RATES = (1 / 3, 1 / 2, 3 / 4, 5 / 6, 7 / 8)


@in_house_style
def draw_ablation(runs: Sequence[TrainedRun]) -> Drawing:
    """Draws the model, task and length of training that most of the dynamic runs share."""
    dynamic = [run for run in runs if run.is_dynamic and not run.has_global_gate]
    if not dynamic:
        raise UserError("needs runs of a network with head-wise dynamic layers (_dgc)")
    setting, _ = Counter(map(_setting, dynamic)).most_common(1)[0]
    dynamic = [run for run in dynamic if _setting(run) == setting]
    model, task, epochs, _ = setting
    heads, rate = _varied_most(dynamic)
    by_heads, by_rate = _errors_by(dynamic, heads, rate)
    if len(by_heads) < 2 and len(by_rate) < 2:
        raise UserError(
            f"needs runs of {model} on {task} for {epochs} epochs that differ in their heads or in their pruning rate"
        )

    figure = new_figure(3.2)
    left, right = figure.subplots(1, 2)
    missing_heads = _draw_bars(left, by_heads, PAPER_HEADS, BLUE, str)
    missing_rates = _draw_bars(right, by_rate, PAPER_RATES, GREEN, _as_fraction)
    left.set(xlabel="heads", ylabel="test error, %", title=f"Heads, at pruning rate {_as_fraction(rate)}")
    right.set(xlabel="pruning rate", ylabel="test error, %", title=f"Pruning rate, with {heads} heads")
    seeds = about_seeds([*by_heads.values(), *by_rate.values()])
    entitle(figure, f"{model} on {task}: how many heads, and how much to leave out{seeds}")
    return Drawing(
        figure,
        {
            "model": model,
            "task": task,
            "epochs": epochs,
            "by_heads": {str(key): errors for key, errors in sorted(by_heads.items())},
            "by_rate": {str(key): errors for key, errors in sorted(by_rate.items())},
            "missing_heads": missing_heads,
            "missing_rates": missing_rates,
            "macs_by_rate": {str(run.trained_rate): run.macs_of_image() for run in dynamic if run.heads == heads},
        },
    )


def _setting(run: TrainedRun) -> tuple[str, str, int, str]:
    """All that must be the same."""
    others = run.recipe.changed(heads=None, pruning_rate=None).settings
    return run.config["model"]["name"], run.task, run.recipe.training.epochs, str(others)


def _varied_most(runs: list[TrainedRun]) -> tuple[int, float]:
    """The heads and the rate around which most others were tried; of equals, those with the most runs."""
    counts = Counter((run.heads, run.trained_rate) for run in runs)
    return max(
        counts, key=lambda fixed: (len(_errors_by(runs, *fixed)[0]) + len(_errors_by(runs, *fixed)[1]), counts[fixed])
    )


def _errors_by(
    runs: list[TrainedRun], heads: int, rate: float
) -> tuple[dict[Any, list[float]], dict[Any, list[float]]]:
    by_heads, by_rate = defaultdict(list), defaultdict(list)
    for run in runs:
        if run.trained_rate == rate:
            by_heads[run.heads].append(run.error)
        if run.heads == heads:
            by_rate[run.trained_rate].append(run.error)
    return dict(by_heads), dict(by_rate)


def _draw_bars(axes: "Axes", errors: dict[Any, list[float]], wanted: tuple, colour: str, name: Any) -> list[Any]:
    """A bar for each setting with the mean over seeds; the settings of the paper that are not there are said."""
    missing = [value for value in wanted if not any(abs(value - key) < 5e-3 for key in errors)]
    settings = sorted([*errors, *missing])
    for place, setting in enumerate(settings):
        values = errors.get(setting)
        if values is None:
            axes.text(
                place, 0.02, "no run", rotation=90, transform=axes.get_xaxis_transform(), ha="center", color="#777777"
            )
            continue
        mean = sum(values) / len(values)
        axes.bar(place, mean, color=colour, width=0.65)
        axes.annotate(f"{mean:.2f}", (place, max(values)), (0, 3), textcoords="offset points", ha="center")
        if len(values) > 1:
            axes.vlines(place, min(values), max(values), color="black", lw=1)
    axes.set_xticks(range(len(settings)), [name(setting) for setting in settings])
    axes.set_xlim(-0.6, len(settings) - 0.4)
    axes.margins(y=0.12)
    axes.grid(axis="x", visible=False)
    return missing


def _as_fraction(rate: float) -> str:
    """0.75 as 3/4 where a small fraction is meant."""
    from fractions import Fraction

    fraction = Fraction(rate).limit_denominator(8)
    return str(fraction) if abs(float(fraction) - rate) < 5e-3 else f"{rate:g}"
