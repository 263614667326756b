"""One factor at a time: runs whose recipes differ in a single setting, found by comparing the records."""

from dataclasses import asdict, dataclass
from typing import Any

from dgconv.errors import unknown_name
from dgconv.models.pretrained import AS_IT_IS
from dgconv.train.recipe import Recipe
from dgconv.train.recipe_files import list_recipes

from .groups import Group, difference, is_beyond_noise
from .record import Record, as_text, changes_of
from .rows import Row
from .wanted import CHANGES, all_wanted, groups_of

HEADINGS = ("what changed", "top-1 error", "difference ± standard error", "beyond noise", "seeds")


@dataclass(frozen=True)
class Change:
    """A change of one setting, as text."""

    setting: str
    before: str
    after: str

    @property
    def what(self) -> str:
        return f"{self.setting}: {self.before} → {self.after}"

    @property
    def order(self) -> tuple[str, str]:
        return self.setting, self.after


@dataclass(frozen=True)
class Factor(Change):
    """What changed against the base of a study, and by how much the error did."""

    group: Group
    difference: float
    standard_error: float | None
    is_beyond_noise: bool | None

    @property
    def cells(self) -> list[str]:
        row = Row.of_group(self.group)
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2f}"
        sure = {True: "yes", False: "no", None: "too few seeds"}[self.is_beyond_noise]
        return [self.what, row.error, f"{self.difference:+.2f}{error}", sure, row.seeds]


@dataclass(frozen=True)
class Study:
    """``missing`` are the changes that are wanted and have no finished run."""

    base: Group
    factors: list[Factor]
    missing: list[Change]

    @property
    def title(self) -> str:
        recipe = self.base.recipe
        return f"{Row.of_group(self.base).title}, {recipe.training.epochs} epochs, {recipe.training.precision}"

    @property
    def lines(self) -> list[list[str]]:
        """The study as text, in the order of ``HEADINGS``; the base first."""
        base = Row.of_group(self.base)
        changes = sorted([*self.factors, *self.missing], key=lambda change: change.order)
        cells = [c.cells if isinstance(c, Factor) else [c.what, "missing", "", "", ""] for c in changes]
        return [["nothing", base.error, "", "", base.seeds], *cells]

    def to_dict(self) -> dict[str, Any]:
        return {
            "base": self.base.name,
            "epochs": self.base.recipe.training.epochs,
            "errors": self.base.errors,
            "factors": [
                {
                    "setting": factor.setting,
                    "before": factor.before,
                    "after": factor.after,
                    "errors": factor.group.errors,
                    "difference": factor.difference,
                    "standard_error": factor.standard_error,
                    "beyond_noise": factor.is_beyond_noise,
                }
                for factor in self.factors
            ],
            "missing": [asdict(change) for change in self.missing],
        }


def study_of(base: Group, groups: list[Group]) -> Study:
    """Every finished group that differs from the base in one setting, whatever it is called."""
    factors = []
    for group in groups:
        if group.finished and (change := _only_change(base.recipe, group.recipe)):
            factors.append(Factor(*change, group, *difference(base, group), is_beyond_noise(base, group)))
    return Study(base, sorted(factors, key=lambda factor: factor.order), _missing(base, groups))


def _only_change(base: Recipe, other: Recipe) -> tuple[str, str, str] | None:
    """The setting in which they differ, as it is in the one and in the other; None where there is not just one."""
    changes = [(name, as_text(old), as_text(new)) for name, (old, new) in base.differences(other).items()]
    return changes[0] if len(changes) == 1 else None


def _missing(base: Group, groups: list[Group]) -> list[Change]:
    if changes_of(base.recipe):  # such as fewer epochs
        return []
    wanted = [change for change in CHANGES if change.recipe == base.name]
    runs = [change.applied(base.recipe) for change in wanted if not change.is_done(base.recipe, groups)]
    changes = [_only_change(base.recipe, run) for run in runs]
    return [Change(*change) for change in changes if change]


def find_base(name: str, groups: list[Group]) -> Group:
    """The base by its folder in results, such as 'digits' or 'digits/epochs=5'."""
    by_folder = {_folder_of(record): group for group in groups for record in group.finished}
    if name not in by_folder:
        raise unknown_name("base of a study", name, by_folder)
    return by_folder[name]


def _folder_of(record: Record) -> str:
    recipe, change = record.folder.parts[-3:-1]
    return recipe if change == AS_IT_IS else f"{recipe}/{change}"


def find_studies(groups: list[Group]) -> list[Study]:
    """A study of every recipe of ours, as it is or only shortened, that has been varied in one setting.

    Other recipes in the tables are no variations, though they may differ in one setting.
    """
    bases: dict[tuple[str, int], Group] = {}
    for group in groups:
        key = group.name, group.recipe.training.epochs
        is_plain = group.name in list_recipes() and set(changes_of(group.recipe)) <= {"epochs"}
        if is_plain and len(group.finished) > len(bases[key].finished if key in bases else []):
            bases[key] = group
    in_tables = [group for wanted in all_wanted() for group in groups_of(wanted, groups)]
    studies = []
    for base in bases.values():
        others = [g for g in groups if g.recipe.training.epochs == base.recipe.training.epochs]
        others = [g for g in others if g.name == base.name or g not in in_tables]
        studies.append(study_of(base, others))
    return [study for study in studies if study.factors or study.missing]
