"""Spending less on easy images: error over average MACs, when unsure images are looked at again."""

from collections.abc import Sequence
from dataclasses import asdict

from ..budget import THRESHOLDS, spend_by_margin
from ..trained_run import TrainedRun
from .rate_sweep import RATES
from .style import BLUE, GREY, RED, SERIES, Drawing, entitle, in_house_style, in_millions, new_figure


def two_rates(trained: float) -> tuple[float, float]:
    """First as many channels as it was trained with, then twice as many (or all)."""
    return trained, max(0.0, 1 - 2 * (1 - trained))


@in_house_style
def draw_adaptive_budget(
    run: TrainedRun, rates: Sequence[float] | None = None, thresholds: Sequence[float] = THRESHOLDS
) -> Drawing:
    """
    Args:
        rates: pruning rates of the passes, from high to low; default the trained one and one below.
        thresholds: of the margin below which an image is looked at again.
    """
    rates = rates or two_rates(run.trained_rate)
    passes = [run.pass_at(rate) for rate in rates]
    spendings = spend_by_margin(passes, thresholds)
    fixed = [run.pass_at(rate) for rate in sorted({*RATES, *rates}, reverse=True) if rate <= rates[0]]

    figure = new_figure(3.5)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    left.plot(
        [s.macs for s in spendings], [s.error for s in spendings], "o-", ms=3.5, color=BLUE, label="more where unsure"
    )
    left.plot([p.mean_macs for p in fixed], [p.error for p in fixed], "s--", color=RED, label="one rate for all images")
    in_millions(left)
    left.set(xlabel="MACs of an image on average, all passes, millions", ylabel="test error, %")
    left.set_ylim(bottom=0)
    left.set_title("Error over cost ('paper' convention)")
    left.legend(loc="best")
    bottom = [0.0] * len(spendings)
    for number, rate in enumerate(rates):
        top = [low + s.stopped[number] for low, s in zip(bottom, spendings, strict=True)]
        colour = (SERIES[5], BLUE, "#003C5F")[number % 3] if len(rates) <= 3 else SERIES[number % len(SERIES)]
        right.fill_between(thresholds, bottom, top, color=colour, label=f"{rate:.3g}", lw=0)
        bottom = top
    right.set(xlabel="margin below which an image goes on", ylabel="share of the images", xlim=(0, 1), ylim=(0, 1))
    right.set_title("Answered at pruning rate")
    right.grid(color=GREY)
    right.legend(loc="upper left", bbox_to_anchor=(1, 1))
    entitle(figure, f"Spending less on easy images: {run.name}")
    return Drawing(
        figure,
        {
            "rates": list(rates),
            "convention": "paper",
            "images": len(passes[0].correct),
            "adaptive": [asdict(spending) for spending in spendings],
            "fixed": [{"rate": p.rate, "error": p.error, "macs": p.mean_macs} for p in fixed],
        },
    )
