"""Every figure: one function each, from a run folder (or several) to a figure and the numbers it shows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...errors import UserError, unknown_name
from ..trained_run import TrainedRun
from ._layers import read_layers
from .ablation import draw_ablation
from .adaptive_budget import draw_adaptive_budget
from .contributions import draw_contributions
from .layer_rates import draw_layer_rates
from .maps import draw_maps
from .probabilities import draw_probabilities
from .rate_sweep import draw_rate_sweep
from .similarity import draw_similarity
from .style import Drawing, check_matplotlib
from .time_split import draw_time_split
from .tradeoff import draw_tradeoff
from .training import draw_training

OF_A_RUN: dict[str, Callable[[TrainedRun], Drawing]] = {
    "training": draw_training,
    "contributions": draw_contributions,
    "maps": draw_maps,
    "probabilities": draw_probabilities,
    "layer_rates": draw_layer_rates,
    "similarity": draw_similarity,
    "rate_sweep": draw_rate_sweep,
    "adaptive_budget": draw_adaptive_budget,
    "time_split": draw_time_split,
}
OF_SEVERAL: dict[str, Callable[[Sequence[TrainedRun]], Drawing]] = {
    "error_over_macs": draw_tradeoff,
    "ablation": draw_ablation,
}


@dataclass(frozen=True)
class Made:
    """What became of one figure: its files, or the reason why these runs do not allow it."""

    figure: str
    run: str  # empty for a figure of several
    files: list[Path]
    reason: str = ""


def make_figures(
    runs: Sequence[TrainedRun], out: Path, only: Sequence[str] = (), layers: Sequence[str] = ()
) -> Iterator[Made]:
    """Every figure that the runs allow, or ``only`` those named, written to a folder (a folder a run, if several).

    ``layers``, such as ``["5-8", "33"]``, are those that maps and probabilities show, counted from 1 on.
    """
    of_a_run = _showing(read_layers(layers))
    for name in only:
        if name not in OF_A_RUN | OF_SEVERAL:
            raise unknown_name("figure", name, OF_A_RUN | OF_SEVERAL)
    check_matplotlib()
    for number, run in enumerate(runs, start=1):
        folder = out if len(runs) == 1 else out / f"{number}-{run.name}"
        for name, draw in of_a_run.items():
            if not only or name.partition("-")[0] in only:
                yield _make(name, str(run.folder), partial(draw, run), folder)
    for name, draw_several in OF_SEVERAL.items():
        if not only or name in only:
            yield _make(name, "", partial(draw_several, runs), out)


def _showing(blocks: list[range]) -> dict[str, Callable[[TrainedRun], Drawing]]:
    """The figures of a run with certain layers, if any are given; each of them has its own figure of probabilities."""
    if not blocks:
        return OF_A_RUN
    others = {name: draw for name, draw in OF_A_RUN.items() if name != "probabilities"}
    numbers = dict.fromkeys(number for block in blocks for number in block)
    return {
        **others,
        "maps": partial(draw_maps, blocks=blocks),
        **{f"probabilities-{number}": partial(draw_probabilities, number=number) for number in numbers},
    }


def _make(name: str, run: str, draw: Callable[[], Drawing], folder: Path) -> Made:
    try:
        drawing = draw()
    except UserError as error:
        return Made(name, run, [], str(error))
    return Made(name, run, drawing.save(folder, name))


__all__ = [
    "Drawing",
    "Made",
    "OF_A_RUN",
    "OF_SEVERAL",
    "make_figures",
    "draw_ablation",
    "draw_adaptive_budget",
    "draw_contributions",
    "draw_layer_rates",
    "draw_maps",
    "draw_probabilities",
    "draw_rate_sweep",
    "draw_similarity",
    "draw_time_split",
    "draw_tradeoff",
    "draw_training",
]
