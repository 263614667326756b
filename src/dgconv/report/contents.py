"""What a report shows: gathered from the runs, step by step, before any HTML is made of it."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..analysis.figures import OF_A_RUN, OF_SEVERAL, Drawing
from ..analysis.trained_run import TrainedRun
from ..environment import describe_environment
from ..errors import unknown_name
from ..train import Recipe
from ..version import __version__
from .curves import Chart, Epochs, draw_charts
from .layers import LayerTable, layers_of
from .missing import Missing, attempt
from .pictures import Picture, draw_picture
from .result import Outcome, result_of

ALL_FIGURES = (*OF_A_RUN, *OF_SEVERAL)
Tell = Callable[[str], None]
TellOf = Callable[[str, int], None]  # a step, and how many there are in all


@dataclass(frozen=True)
class Setting:
    """A field of a recipe; ``is_default`` if it is what one gets without saying anything."""

    name: str
    value: str
    is_default: bool


@dataclass
class Section:
    """All about one run."""

    title: str
    folder: str
    result: Outcome
    layers: LayerTable | None
    pictures: list[Picture]
    settings: list[Setting]
    environment: dict[str, Any]  # that it was trained in
    config: str  # as JSON
    missing: list[Missing]
    figures_left_out: list[Missing]


@dataclass
class Contents:
    sections: list[Section]
    charts: list[Chart]
    pictures: list[Picture]  # of several runs
    figures_left_out: list[Missing]  # of these
    environment: dict[str, Any] = field(default_factory=lambda: {**describe_environment("cpu"), "dgconv": __version__})


def gather(
    runs: Sequence[TrainedRun], *, figures: Collection[str] = ALL_FIGURES, tell: TellOf = lambda step, count: None
) -> Contents:
    """Reads, counts, records, measures and draws. Damaged files are a UserError, before anything takes long.

    Args:
        figures: names of those to draw.
        tell: hears what comes next, and how many such steps there are.
    """
    for name in figures:
        if name not in ALL_FIGURES:
            raise unknown_name("figure", name, ALL_FIGURES)
    of_several = len(OF_SEVERAL.keys() & figures) if len(runs) > 1 else 0
    count = len(runs) * (2 + len(OF_A_RUN.keys() & figures)) + of_several
    epochs = [run.files.metrics for run in runs]
    sections = [
        _section(run, title, lines, figures, lambda step: tell(step, count))
        for run, title, lines in zip(runs, _titles(runs), epochs, strict=True)
    ]
    pictures: list[Picture] = []
    left_out: list[Missing] = []
    if len(runs) > 1:
        drawings = {name: partial(draw, runs) for name, draw in OF_SEVERAL.items() if name in figures}
        pictures, left_out = _draw_all(drawings, lambda step: tell(step, count))
    return Contents(sections, draw_charts(epochs), pictures, left_out)


def _titles(runs: Sequence[TrainedRun]) -> list[str]:
    """The titles; those that several have, as runs of one recipe with other settings do, with the folder's name."""
    titles = [run.recipe.title if "recipe" in run.config else run.name for run in runs]
    return [
        title if titles.count(title) == 1 else f"{title} ({run.folder.resolve().name})"
        for title, run in zip(titles, runs, strict=True)
    ]


def _section(run: TrainedRun, title: str, epochs: Epochs, figures: Collection[str], tell: Tell) -> Section:
    missing: list[Missing] = []
    if not epochs:
        missing.append(Missing("curves", "the run folder has no metrics, or an empty file of them"))
    tell(f"{title}: results")
    result = result_of(run, epochs, missing)
    tell(f"{title}: layers")
    layers = attempt("layers", lambda: layers_of(run, missing), missing)
    drawings = {name: partial(draw, run) for name, draw in OF_A_RUN.items() if name in figures}
    pictures, left_out = _draw_all(drawings, lambda step: tell(f"{title}: {step}"))
    environment = run.config.get("environment")
    return Section(
        title=title,
        folder=str(run.folder),
        result=result,
        layers=layers,
        pictures=pictures,
        settings=_settings(run.recipe) if "recipe" in run.config else [],
        environment=environment if isinstance(environment, dict) else {},
        config=json.dumps(run.config, indent=2),
        missing=missing,
        figures_left_out=left_out,
    )


def _draw_all(drawings: Mapping[str, Callable[[], Drawing]], tell: Tell) -> tuple[list[Picture], list[Missing]]:
    """The pictures that can be had, and the others with the reason why not."""
    pictures: list[Picture] = []
    left_out: list[Missing] = []
    for name, draw in drawings.items():
        words = name.replace("_", " ")
        tell(words)
        if picture := attempt(words, partial(draw_picture, name, draw), left_out):
            pictures.append(picture)
    return pictures, left_out


def _settings(recipe: Recipe) -> list[Setting]:
    """The settings that say something: a field that is None leaves the choice to the model."""
    default = Recipe()
    return [
        Setting(name.replace("_", " "), _as_text(value), value == default.get(name))
        for name, value in {"name": recipe.name, **recipe.flat}.items()
        if value is not None and value != ""
    ]


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
