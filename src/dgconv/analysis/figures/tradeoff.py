"""Error over MACs for several runs, beside what the paper reports for their recipes (fourth and fifth figure)."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...cost.macs import Convention
from ...layers.method import METHODS
from ...train.recipe import Recipe
from ...train.recipe_files import reported_for
from ..trained_run import TrainedRun
from .style import GREY, Drawing, about_seeds, entitle, in_house_style, in_millions, look_of, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEGEND_LETTERS = 105  # that fit into the width, six of them taken by each marker
COUNTED_BY = {"paper": "the paper's text", "authors": "the authors' code"}
SIZES = {"mac_budget", "prune_rate", "prune_budget", "stages", "growth", "width"}
LEAST_ROOM = 1 / 20  # above and below the points, of the error: small differences must look small


@in_house_style
def draw_tradeoff(runs: Sequence[TrainedRun], convention: Convention = "authors") -> Drawing:
    """A panel a task, a line a kind of network, a point for each cost; seeds are one point with their range."""
    points = collect(runs, convention)
    panels = sorted({point["task"] for point in points})
    rows = (len(panels) + 1) // 2
    figure = new_figure(0.8 + 2.8 * rows)
    axes_grid = figure.subplots(rows, min(2, len(panels)), squeeze=False)
    for axes in axes_grid.flat[len(panels) :]:
        axes.set_visible(False)
    kinds = sorted({point["kind"] for point in points})
    for axes, task in zip(axes_grid.flat, panels, strict=False):
        for number, kind in enumerate(kinds):
            members = [point for point in points if (point["task"], point["kind"]) == (task, kind)]
            if members:
                _draw_line(axes, kind, members, number)
        axes.set(title=task, xlabel="MACs of one image, millions", ylabel="test error, %")
        in_millions(axes)
        low, high = axes.dataLim.ymin, axes.dataLim.ymax
        room = max((high - low) / 10, LEAST_ROOM * high) or 1  # no error at all
        axes.set(xlim=(0, 1.12 * axes.dataLim.xmax), ylim=(max(0, low - room), high + room))
    handles = {
        label: handle
        for axes in axes_grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = max(1, min(4, len(handles), LEGEND_LETTERS // (max(map(len, handles)) + 6)))
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)
    seeds = about_seeds(point["errors"] for point in points)
    entitle(figure, f"What a lower error costs; MACs as {COUNTED_BY[convention]} counts them{seeds}")
    return Drawing(figure, {"convention": convention, "points": points})


def collect(runs: Sequence[TrainedRun], convention: Convention) -> list[dict[str, Any]]:
    """One point for the runs that differ in nothing but their seed."""
    groups: dict[str, list[TrainedRun]] = defaultdict(list)
    for run in runs:
        groups[f"{run.task} {run.recipe.settings}"].append(run)
    kinds = _kinds([members[0] for members in groups.values()])
    points = []
    for members, kind in zip(groups.values(), kinds, strict=True):
        first = members[0]
        errors = [run.error for run in members]
        reported = reported_for(first.recipe)
        points.append(
            {
                "name": first.name,
                "task": first.task,
                "model": first.config["model"]["name"],
                "kind": kind,
                "macs": sum(run.macs_of_image(convention) for run in members) / len(members),
                "error": sum(errors) / len(errors),
                "errors": errors,
                "reported": {"macs": reported.macs, "error": reported.error, "where": reported.where}
                if reported
                else None,
            }
        )
    return sorted(points, key=lambda point: (point["task"], point["kind"], point["macs"]))


def how_much() -> set[str]:
    """Settings that move a network along its line: those that set what a method costs, and sizes."""
    return SIZES | {name for method in METHODS.values() for name in method.cost_options}


def legend_of(recipe: Recipe) -> str:
    """The backbone and the method as the literature calls it, or the way in which the network is pruned."""
    backbone, _, method = recipe.model.name.partition("_")
    name = method or recipe.get("prune")
    return f"{backbone} {METHODS[name].title}" if name in METHODS else recipe.model.name


def _kind(run: TrainedRun) -> str:
    """The model, and what else sets a run apart that is trained to be better or smaller."""
    heads, cutout = run.recipe.get("heads"), run.recipe.data.cutout
    also = [f"heads {heads}" if heads else None, f"cutout {cutout}" if cutout else None]
    return ", ".join(filter(None, [legend_of(run.recipe), *also]))


def _kinds(runs: Sequence[TrainedRun]) -> list[str]:
    """Names the line of each run: runs of one kind share it, and what tells other lines apart is named."""
    alike: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        alike[run.task, _kind(run)].append(run.recipe.settings)
    return [_told_apart(run, alike[run.task, _kind(run)]) for run in runs]


def _told_apart(run: TrainedRun, alike: list[dict[str, Any]]) -> str:
    default, passed_over = Recipe(), how_much() | {"model", "data", "heads", "cutout", "prune"}
    changed = [
        f"{name} {value}"
        for name, value in run.recipe.settings.items()
        if name not in passed_over and value != default.get(name) and any(other.get(name) != value for other in alike)
    ]
    return ", ".join([_kind(run), *changed])


def _draw_line(axes: "Axes", kind: str, points: list[dict[str, Any]], number: int) -> None:
    colour, marker = look_of(number)
    macs, errors = [point["macs"] for point in points], [point["error"] for point in points]
    axes.plot(macs, errors, "-", marker=marker, color=colour, label=kind)
    for point in points:
        if len(point["errors"]) > 1:
            axes.vlines(point["macs"], min(point["errors"]), max(point["errors"]), color=colour, lw=1)
        reported = point["reported"]
        if reported and reported["macs"] and reported["error"]:
            axes.plot(
                reported["macs"],
                reported["error"],
                marker,
                mfc="none",
                mec=colour,
                ms=8,
                ls="",
                label=f"{kind}, the paper",
            )
    axes.tick_params(color=GREY)
