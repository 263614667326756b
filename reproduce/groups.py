"""Records that differ in nothing but their seed are one result: a mean and a spread."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

from dgconv.analysis.plan import NetworkCost
from dgconv.train.recipe import Recipe
from dgconv.train.recipe_files import Reported, reported_for

from .record import Record, as_text, changes_of

NOISE = 0.05  # how often seeds alone make a difference that is taken for real
SURE = 2  # standard errors that this takes with many seeds; with few it takes more


@dataclass(frozen=True)
class Group:
    """Runs of one recipe, changed alike or not at all. Errors are in percent, of the test images after the last epoch.

    Only ``finished`` runs count; ``unfinished`` ones are only told of.
    """

    finished: list[Record]
    unfinished: list[Record]

    @property
    def recipe(self) -> Recipe:
        return (self.finished or self.unfinished)[0].recipe

    @property
    def name(self) -> str:
        return self.recipe.run_name

    @property
    def changes(self) -> str:
        """What was set otherwise than in the recipe of that name; empty for the recipe as it is."""
        return ", ".join(f"{name} {as_text(value)}" for name, value in changes_of(self.recipe).items())

    @property
    def errors(self) -> dict[int, float]:
        """The errors by seed."""
        return {record.seed: record.error for record in self.finished}

    @property
    def error(self) -> float:
        return statistics.mean(self.errors.values())

    @property
    def best_error(self) -> float:
        """The mean over seeds of the best epoch's."""
        return statistics.mean(record.best_error for record in self.finished)

    @property
    def late_error(self) -> float:
        """The mean over seeds of the mean over the last epochs."""
        return statistics.mean(record.late_error for record in self.finished)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for one."""
        return statistics.stdev(self.errors.values()) if len(self.errors) > 1 else None

    @property
    def reported(self) -> Reported | None:
        return reported_for(self.recipe)

    @property
    def cost(self) -> NetworkCost:
        """The cost of the first, and the mean of what was measured where they differ."""
        costs = [record.cost for record in self.finished or self.unfinished]
        macs = {key: statistics.mean(cost.macs[key] for cost in costs) for key in costs[0].macs}
        return NetworkCost(costs[0].parameters, macs, costs[0].dense_macs)

    @property
    def pruned_share(self) -> float | None:
        """The share of the saliencies that is pruned, measured on all test images."""
        shares: list[Any] = [record.metrics[-1].get("pruned_share") for record in self.finished]
        return None if not shares or None in shares else statistics.mean(shares)

    @property
    def seconds(self) -> float | None:
        """The seconds of one training, the mean over seeds."""
        times = [record.seconds for record in self.finished if record.seconds is not None]
        return statistics.mean(times) if times else None


def group_records(records: Iterable[Record]) -> list[Group]:
    """The groups, in the order of their first records."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[f"{record.recipe.run_name} {record.recipe.settings}"].append(record)
    return [
        Group([r for r in members if r.is_finished], [r for r in members if not r.is_finished])
        for members in groups.values()
    ]


def difference(base: Group, other: Group) -> tuple[float, float | None]:
    """The difference of the mean errors, and its standard error; None where one of them has a single seed."""
    delta = other.error - base.error
    if base.spread is None or other.spread is None:
        return delta, None
    return delta, sqrt(base.spread**2 / len(base.errors) + other.spread**2 / len(other.errors))


def is_beyond_noise(base: Group, other: Group, allowed: float = 0.0) -> bool | None:
    """Whether seeds alone would make such a difference in fewer than one of twenty cases; None with too few of them.

    Welch's t-test, which knows how little a spread over three seeds tells. A single seed is taken to spread as the
    seeds of the other group do. ``allowed`` is what the other one's error may be above the base's to be on a par.
    """
    spreads = [group.spread for group in (base, other) if group.spread is not None]
    if not spreads:
        return None
    if not any(spreads):
        return base.error + allowed != other.error
    return _is_sure(base, other, (len(base.errors), len(other.errors)), allowed, equal_var=len(spreads) == 1)


def seeds_to_tell(base: Group, other: Group, allowed: float = 0.0) -> int | None:
    """How many of each it takes until a difference like this one is beyond noise; None where nothing is known."""
    delta = round(difference(base, other)[0] - allowed, 9)  # what is less is rounding
    if base.spread is None or other.spread is None or not delta:
        return None
    seeds = max(2, ceil(SURE**2 * (base.spread**2 + other.spread**2) / delta**2))
    while not _is_sure(base, other, (seeds, seeds), allowed):
        seeds += 1
    return seeds


def _is_sure(base: Group, other: Group, seeds: tuple[int, int], allowed: float = 0.0, equal_var: bool = False) -> bool:
    """Whether the test would find their difference, were there so many seeds of each."""
    from scipy.stats import ttest_ind_from_stats

    facts = [
        fact
        for group, count, more in zip((base, other), seeds, (allowed, 0.0), strict=True)
        for fact in (group.error + more, group.spread or 0.0, count)
    ]
    return bool(ttest_ind_from_stats(*facts, equal_var=equal_var).pvalue < NOISE)
