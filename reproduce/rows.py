"""The lines of the result tables: what was found for a recipe, beside what the paper reports, or that it is missing."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from dgconv.analysis.kept_costs import cost_of
from dgconv.analysis.plan import NetworkCost
from dgconv.cost.macs import Convention
from dgconv.train.recipe import Recipe
from dgconv.train.recipe_files import Reported, load_recipe, reported_of

from .groups import Group
from .record import Record
from .wanted import Wanted, all_wanted, groups_of


@dataclass(frozen=True)
class Row:
    """A recipe, and a group of its runs if there are any."""

    recipe: Recipe
    cost: NetworkCost
    reported: Reported | None
    group: Group | None = None

    @staticmethod
    def of_group(group: Group) -> "Row":
        return Row(group.recipe, group.cost, group.reported, group)

    @staticmethod
    def of_missing(name: str) -> "Row":
        recipe = load_recipe(name)
        return Row(recipe, cost_of(recipe), reported_of(name))

    @property
    def title(self) -> str:
        changes = f", {self.group.changes}" if self.group and self.group.changes else ""
        return f"`{self.recipe.run_name}`{changes}"

    @property
    def error(self) -> str:
        """The mean over seeds and their standard deviation; of unfinished runs how far they are."""
        if self.group and self.group.finished:
            spread = "" if self.group.spread is None else f" ± {self.group.spread:.2f}"
            return f"{self.group.error:.2f} %{spread}"
        if self.group:
            epochs = max(record.epochs_done for record in self.group.unfinished)
            return f"unfinished, {epochs} of {self.recipe.training.epochs} epochs"
        return "missing"

    @property
    def by_seed(self) -> str:
        if not self.group:
            return ""
        finished = [f"{error:.2f} ({seed})" for seed, error in self.group.errors.items()]
        return ", ".join(finished + [_so_far(record) for record in self.group.unfinished])

    @property
    def best(self) -> str:
        return f"{self.group.best_error:.2f} %" if self.group and self.group.finished else ""

    @property
    def late(self) -> str:
        return f"{self.group.late_error:.2f} %" if self.group and self.group.finished else ""

    @property
    def seeds(self) -> str:
        return list_numbers(self.group.errors) if self.group else ""

    @property
    def in_paper(self) -> str:
        if self.reported is None:
            return "not in it"
        return "in a figure" if self.reported.error is None else f"{self.reported.error:.2f} %"

    @property
    def against_paper(self) -> str:
        """Our error less the reported one."""
        if not self.group or not self.group.finished or not self.reported or self.reported.error is None:
            return ""
        return f"{self.group.error - self.reported.error:+.2f}"

    def macs(self, convention: Convention) -> str:
        return f"{self.cost.macs[convention] / 1e6:.1f}M"

    def dense_macs(self, convention: Convention) -> str:
        return f"{self.cost.dense_macs[convention] / 1e6:.1f}M"

    @property
    def pruned(self) -> str:
        share = self.group.pruned_share if self.group else None
        return "" if share is None else f"{share:.3f}"

    @property
    def time(self) -> str:
        seconds = self.group.seconds if self.group else None
        if seconds is None:
            return "not measured"
        return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.2f} h"

    def to_dict(self) -> dict[str, Any]:
        group = self.group
        return {
            "recipe": self.recipe.run_name,
            "changes": group.changes if group else "",
            "precision": self.recipe.training.precision,
            "epochs": self.recipe.training.epochs,
            "errors": group.errors if group else {},
            "error": group.error if group and group.finished else None,
            "spread": group.spread if group else None,
            "late_error": group.late_error if group and group.finished else None,
            "unfinished": {record.seed: record.epochs_done for record in group.unfinished} if group else {},
            "reported": asdict(self.reported) if self.reported else None,
            "macs": self.cost.macs,
            "dense_macs": self.cost.dense_macs,
            "pruned_share": group.pruned_share if group else None,
            "seconds": group.seconds if group else None,
        }


def rows_for(wanted: Wanted, groups: list[Group]) -> list[Row]:
    """One for each precision it was trained in, or one that says that it is missing, if it is."""
    found = [Row.of_group(group) for group in groups_of(wanted, groups)]
    return found or ([Row.of_missing(wanted.recipe)] if wanted.seeds else [])


def other_rows(groups: list[Group]) -> list[Row]:
    """Rows of the runs that no table asks for."""
    shown = [group for wanted in all_wanted() for group in groups_of(wanted, groups)]
    return [Row.of_group(group) for group in groups if group not in shown]


def all_rows(groups: list[Group]) -> list[Row]:
    """Rows of all wanted runs, there or missing, and then of all others."""
    return [row for wanted in all_wanted() for row in rows_for(wanted, groups)] + other_rows(groups)


def list_numbers(numbers: Iterable[int]) -> str:
    """Numbers in their order; of more than three that follow on each other, the first and the last."""
    ordered = sorted(numbers)
    runs = [[number for _, number in run] for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 3 else ", ".join(map(str, run)) for run in runs)


def _so_far(unfinished: Record) -> str:
    done = unfinished.epochs_done
    error = f": {unfinished.metrics[done - 1]['test_error']:.2f} at epoch {done}" if done else ""
    return f"unfinished{error} ({unfinished.seed})"
