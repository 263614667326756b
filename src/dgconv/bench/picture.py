"""A picture of a benchmark: a bar for each form, a panel for each batch size and number of threads."""

from pathlib import Path

from ..analysis.figures.style import check_matplotlib, entitle
from ..errors import UserError
from .forms import Kind
from .result import Bench, Measurement, times

# told apart by colour-blind eyes
COLOURS: dict[Kind, str] = {"dense": "#0072B2", "sgc": "#E69F00", "dgc": "#009E73", "model": "#009E73"}
NAME_LETTERS = 32  # of a model or run folder, in the title
SUFFIXES = (".png", ".svg", ".pdf")


def check_picture(file: Path) -> None:
    """Refuses a file that no picture can be drawn into, before anything is measured."""
    if file.suffix not in SUFFIXES:
        raise UserError(f"{file}: a picture must end in one of {', '.join(SUFFIXES)}")
    check_matplotlib()


def draw_bench(bench: Bench, file: Path) -> None:
    check_picture(file)
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    batch_sizes = list(dict.fromkeys(measurement.batch_size for measurement in bench.measurements))
    threads = list(dict.fromkeys(measurement.threads for measurement in bench.measurements))
    bars = max(len(measurement.rows) for measurement in bench.measurements)
    figure = Figure(figsize=(5.5 * len(threads), (0.32 * bars + 0.9) * len(batch_sizes) + 0.8), layout="constrained")
    panels = figure.subplots(len(batch_sizes), len(threads), squeeze=False)
    for measurement in bench.measurements:
        panel: Axes = panels[batch_sizes.index(measurement.batch_size), threads.index(measurement.threads)]
        _draw_panel(panel, measurement)
    size = "x".join(map(str, bench.input_size))
    machine = f"{bench.machine['hardware']}, torch {bench.machine['torch']}, {bench.machine['date']}"
    rate = "" if bench.pruning_rate is None else f", pruning rate {bench.pruning_rate:.3g}"
    entitle(
        figure,
        f"{_end_of(bench.model)}, {size}{rate}\n{machine}\n"
        "beside the bars: speed-up over the fastest rival of the same precision",
    )
    figure.savefig(file)


def _end_of(name: str) -> str:
    """The end says the most about a long path."""
    return name if len(name) <= NAME_LETTERS else f"…{name[1 - NAME_LETTERS :]}"


def _draw_panel(panel: "Axes", measurement: Measurement) -> None:  # type: ignore[name-defined]  # noqa: F821
    rows = [row for row in measurement.rows if row.median is not None and row.quartiles is not None]
    medians = [1e3 * (row.median or 0) for row in rows]
    spread = [
        [median - 1e3 * row.quartiles[0] for median, row in zip(medians, rows, strict=True) if row.quartiles],
        [1e3 * row.quartiles[1] - median for median, row in zip(medians, rows, strict=True) if row.quartiles],
    ]
    bars = panel.barh([row.name for row in rows], medians, xerr=spread, color=[COLOURS[row.kind] for row in rows])
    panel.bar_label(bars, [times(row.speedup) for row in rows], padding=6, fontsize=8)
    panel.invert_yaxis()
    panel.margins(x=0.15)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.set_xlabel(f"ms, {measurement.place}; bars end at the median", fontsize=8)
