"""Error over pruning rate for one trained network, changed after training by :func:`~dgconv.analysis.rate.set_rate`."""

from collections.abc import Sequence

from ..trained_run import TrainedRun
from .style import BLUE, GREY, ORANGE, Drawing, entitle, in_house_style, new_figure

RATES = (0.0, 0.25, 0.5, 0.625, 0.75, 0.8125, 0.875, 0.9375)


@in_house_style
def draw_rate_sweep(run: TrainedRun, rates: Sequence[float] = RATES) -> Drawing:
    trained = run.trained_rate
    passes = [run.pass_at(rate) for rate in sorted({*rates, trained})]
    figure = new_figure(3.3)
    axes = figure.subplots()
    (error,) = axes.plot([p.rate for p in passes], [p.error for p in passes], "o-", color=BLUE, label="test error")
    line = axes.axvline(trained, color=GREY, ls="--", label=f"trained at {trained:.3g}")
    axes.set(xlabel="pruning rate in use", ylabel="test error, %")
    axes.set_ylim(bottom=0)
    cost = axes.twinx()
    (macs,) = cost.plot(
        [p.rate for p in passes],
        [p.mean_macs / 1e6 for p in passes],
        "s-",
        color=ORANGE,
        label="MACs of an image ('paper' convention)",
    )
    cost.set_ylabel("MACs of an image, millions")
    cost.set_ylim(bottom=0)
    cost.spines["right"].set_visible(True)
    cost.grid(visible=False)
    figure.legend(handles=[error, macs, line], loc="outside lower center", ncols=3)
    entitle(
        figure,
        f"{run.name} at other pruning rates\nwithout training: only the statistics of its batch norms are taken anew",
    )
    return Drawing(
        figure,
        {
            "trained_rate": trained,
            "convention": "paper",
            "rate": [p.rate for p in passes],
            "error": [p.error for p in passes],
            "macs": [p.mean_macs for p in passes],
        },
    )
