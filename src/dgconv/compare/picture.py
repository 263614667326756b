"""A picture of a comparison: error over MACs, and error over measured latency."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.figures.style import entitle, look_of
from .table import Comparison, MethodResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_TICKS, MANY_TICKS = (1, 2, 5), (1, 1.5, 2, 3, 5, 7)  # of a decade


def draw_comparison(comparison: Comparison, file: Path) -> None:
    figure_of(comparison).savefig(file, dpi=150)


def figure_of(comparison: Comparison) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    over_macs, over_time = figure.subplots(1, 2, sharey=True)
    for number, method in enumerate(comparison.methods):
        colour, marker = look_of(number)
        style = {"color": colour, "marker": marker}
        _draw(over_macs, method, method.macs("paper") / 1e6, None, style)
        low, high = method.latency_quartiles_ms
        spread = [[method.latency_ms - low], [high - method.latency_ms]]
        _draw(over_time, method, method.latency_ms, spread, style)
    over_macs.set(xlabel="MACs an image, millions ('paper' convention)", ylabel="test error, %", ylim=(0, None))
    over_macs.set_xlim(left=0)
    over_time.set(xlabel="measured latency, ms (batch 1, 1 thread)", xscale="log")
    fastest, slowest = over_time.get_xlim()
    over_time.xaxis.set_major_locator(LogLocator(subs=MANY_TICKS if slowest < 10 * fastest else FEW_TICKS))
    over_time.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    over_time.xaxis.set_minor_locator(NullLocator())
    for panel in (over_macs, over_time):
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*over_macs.get_legend_handles_labels(), loc="outside right center", frameon=False)
    bars = "bars: standard deviation over seeds, and quartiles of the time"
    entitle(figure, f"{comparison.title}; {bars}\n{comparison.fine_print}")
    return figure


def _draw(panel: "Axes", method: MethodResult, x: float, x_spread: Any, style: dict[str, Any]) -> None:
    panel.errorbar(
        x, method.error, xerr=x_spread, yerr=method.error_spread, label=method.title, linestyle="", capsize=2, **style
    )
