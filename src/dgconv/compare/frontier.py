"""What a lower error costs in milliseconds: the networks of a study, timed in one sitting, and those nothing beats."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..analysis.figures.style import entitle, look_of
from ..bench.settle import settle_
from ..bench.timing import describe_machine, time_side_by_side
from ..deploy import PreparedModel, load
from ..deploy.precision import Precision, prepare_as
from ..environment import one_thread
from ..errors import UserError
from ..files import write_atomically
from ..models import load_model
from ..runs import RunFolder
from .methods import as_it_runs
from .study import DEPLOYED, INT8, Study, StudyRun, is_trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
TIMED_IMAGES, CALIBRATION_IMAGES = 16, 32
RECORD, PICTURE = "frontier.json", "frontier.png"


@dataclass(frozen=True)
class Seed:
    """A trained network: its error while it trained, and deployed in each precision, in percent."""

    seed: int
    error: float
    deployed: dict[str, float]
    parameters: int | None


@dataclass(frozen=True)
class PointResult:
    """A point of the study. Milliseconds are of one image on one thread, by its side and by precision; ``timed`` says
    whether of trained weights, or of random ones where those are not there."""

    name: str
    family: str
    settings: dict[str, Any]
    seeds: list[Seed]
    ms: dict[str, dict[str, float]] = field(default_factory=dict)
    timed: dict[str, str] = field(default_factory=dict)

    def errors(self, precision: str) -> list[float]:
        return [seed.deployed[precision] for seed in self.seeds if precision in seed.deployed]

    def error(self, precision: str) -> float:
        return statistics.mean(self.errors(precision))

    def spread(self, precision: str) -> float | None:
        errors = self.errors(precision)
        return statistics.stdev(errors) if len(errors) > 1 else None


@dataclass(frozen=True)
class Frontier:
    title: str
    machine: dict[str, Any]
    trained_on: list[str]
    points: list[PointResult]

    def best(self, precision: str, side: str) -> list[PointResult]:
        """The points that no other one beats in both error and time, fastest first."""
        there = [p for p in self.points if p.errors(precision) and precision in p.ms.get(side, {})]
        there.sort(key=lambda point: (point.ms[side][precision], point.error(precision)))
        found: list[PointResult] = []
        for point in there:
            if not found or point.error(precision) < found[-1].error(precision):
                found.append(point)
        return found

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Frontier":
        points = [PointResult(**{**p, "seeds": [Seed(**seed) for seed in p["seeds"]]}) for p in values["points"]]
        return Frontier(values["title"], values["machine"], values["trained_on"], points)


def read_points(runs: Sequence[StudyRun]) -> list[PointResult]:
    """What is there of each point: networks that are trained."""
    by_point: dict[str, PointResult] = {}
    for run in runs:
        point = by_point.setdefault(
            run.point.name, PointResult(run.point.name, run.point.family, run.point.settings, [])
        )
        if is_trained(run):
            found = json.loads(text) if (text := _read(run.folder / DEPLOYED)) else {}
            error = RunFolder(run.folder).metrics[-1]["test_error"]
            deployed: dict[str, float] = {precision: found[precision] for precision in PRECISIONS if precision in found}
            point.seeds.append(Seed(run.seed, error, deployed, found.get("parameters")))
    return [point for point in by_point.values() if point.seeds]


def _read(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


@torch.no_grad()
def time_points(
    points: Sequence[PointResult],
    runs: Sequence[StudyRun],
    sides: Sequence[int],
    repeats: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """Fills in the milliseconds of all points, interleaved, at each side of the images; of the first seed's network."""
    first = {run.point.name: run for run in reversed(runs) if is_trained(run)}
    for side in sides:
        for precision in PRECISIONS:
            calls: dict[str, Callable[[], Any]] = {}
            for point in points:
                images = torch.randn(TIMED_IMAGES, 3, side, side, generator=torch.Generator().manual_seed(0))
                try:
                    network, weights = _network(first[point.name], precision, images)
                    network(images[:1])  # what cannot run says so
                except UserError as error:
                    tell(f"{point.name} is not timed in {precision}: {error}")
                    continue
                calls[point.name] = _in_turn(network, images)
                point.timed[precision] = weights
            tell(f"timing {len(calls)} networks in {precision} at {side} pixels")
            with one_thread():
                seconds = time_side_by_side(calls, repeats) if calls else {}
            for point in points:
                if point.name in seconds:
                    point.ms.setdefault(str(side), {})[precision] = 1e3 * statistics.median(seconds[point.name])


def _network(run: StudyRun, precision: Precision, images: Tensor) -> tuple[PreparedModel, str]:
    """The network of a run as it is deployed, and whose weights it has."""
    if precision == "int8" and (run.folder / INT8).is_dir():
        return load(run.folder / INT8), "trained"
    kept = RunFolder(run.folder)
    if kept.has_weights:
        network: nn.Module = load_model(kept)
    elif "prune" in run.recipe.model.options or run.recipe.model.name.endswith("_lgc"):
        raise UserError("what training left of it is known by its weights only, and they are not there")
    else:
        network = run.recipe.build_model(len(kept.config["classes"]))
        settle_(network, (3, images.shape[2], images.shape[3]))
    prepared = prepare_as(as_it_runs(network), precision, images[:CALIBRATION_IMAGES], freeze="auto")
    return prepared, "trained" if kept.has_weights else "random"


def _in_turn(network: PreparedModel, images: Tensor) -> Callable[[], Any]:
    one_by_one = cycle(images.split(1))
    return lambda: network(next(one_by_one))


def frontier_of(
    study: Study, runs: Sequence[StudyRun], sides: Sequence[int], *, tell: Callable[[str], None] = lambda text: None
) -> Frontier:
    """Errors and milliseconds of all that is trained."""
    points = read_points(runs)
    if not points:
        raise UserError("no network of this study is trained yet; leave out `only_measure`, or name the folder of runs")
    time_points(points, runs, sides, tell=tell)
    trained_on = dict.fromkeys(_where(run) for run in runs if is_trained(run))
    return Frontier(study.title, describe_machine(), list(trained_on), points)


def _where(run: StudyRun) -> str:
    environment = RunFolder(run.folder).config.get("environment", {})
    hardware, torch_version = environment.get("hardware", "unknown"), environment.get("torch", "unknown")
    return f"{hardware}, torch {torch_version}, {environment.get('date', '')}"


def write_frontier(frontier: Frontier, folder: Path) -> None:
    write_atomically(folder / RECORD, (json.dumps(frontier.to_dict(), indent=1) + "\n").encode())


def figure_of(frontier: Frontier, side: str) -> "Figure":
    """Error over milliseconds in float32 and in int8; a line joins the points that nothing beats."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    families = list(dict.fromkeys(point.family for point in frontier.points))
    panels = figure.subplots(1, 2, sharey=True)
    for panel, precision in zip(panels, PRECISIONS, strict=True):
        for number, family in enumerate(families):
            colour, marker = look_of(number)
            own = [p for p in frontier.points if p.family == family and precision in p.ms.get(side, {})]
            own = [p for p in own if p.errors(precision)]
            for index, point in enumerate(own):
                panel.errorbar(
                    point.ms[side][precision], point.error(precision), yerr=point.spread(precision), color=colour,
                    marker=marker, linestyle="", capsize=2, label=family if not index else None,
                )  # fmt: skip
        best = frontier.best(precision, side)
        panel.step(
            [p.ms[side][precision] for p in best], [p.error(precision) for p in best], where="post", color="0.6", lw=1
        )
        for point in best:
            panel.annotate(
                point.name, (point.ms[side][precision], point.error(precision)), fontsize=8,
                xytext=(4, -9), textcoords="offset points",
            )  # fmt: skip
        panel.set(xlabel=f"{precision}: ms an image of {side} pixels, 1 thread", xscale="log")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel="test error, %")
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right center", frameon=False)
    entitle(figure, f"{frontier.title}; bars: standard deviation over seeds\nTimed on {frontier.machine['hardware']}")
    return figure
