"""A picture of a comparison: error over MACs, and error over measured latency."""

from pathlib import Path

from ..analysis.figures.style import look_of
from ..deploy.bench_picture import check_picture
from .record import Comparison, MethodResult


def draw_comparison(comparison: Comparison, file: Path) -> None:
    check_picture(file)
    from matplotlib.figure import Figure

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
    for panel in (over_macs, over_time):
        panel.grid(alpha=0.3, which="both")
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*over_macs.get_legend_handles_labels(), loc="outside right center", frameon=False)
    bars = "bars: standard deviation over seeds, and quartiles of the time"
    figure.suptitle(f"{comparison.title}; {bars}\n{comparison.fine_print}", fontsize=9)
    figure.savefig(file, dpi=150)


def _draw(panel: "Axes", method: MethodResult, x: float, x_spread: object, style: dict[str, str]) -> None:  # type: ignore[name-defined]  # noqa: F821
    panel.errorbar(
        x, method.error, xerr=x_spread, yerr=method.error_spread, label=method.title, linestyle="", capsize=2, **style
    )
