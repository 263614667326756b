"""Whether a data set has the classes that a run was trained on: it may have moved, or changed meanwhile."""

from pathlib import Path

from ..data import Data
from ..errors import UserError
from ..runs import RunFolder
from .recipe import Recipe


def load_data_of_run(run: RunFolder, recipe: Recipe, data_dir: str | None = None) -> Data:
    """The data set of a run, to look at the network with; from another folder if it has moved."""
    config, data, folder = run.config, recipe.load_data(data_dir), run.path
    refuse_other_classes(config.get("classes") or [], data, folder)
    count = config.get("model", {}).get("num_classes", len(data.classes))
    if count != len(data.classes):  # of a run that is older than the names in its folder
        raise _other_classes(folder, f"{count} of them, now {len(data.classes)}")
    return data


def refuse_other_classes(trained: list[str], data: Data, folder: Path) -> None:
    """Refuses classes of other numbers: right answers would count as wrong. ``trained`` is empty if unknown."""
    if not trained:
        return
    if len(trained) != len(data.classes):
        raise _other_classes(folder, f"{len(trained)} of them, now {len(data.classes)}")
    if _are_numbers(trained) or _are_numbers(data.classes):
        return
    for number, (then, now) in enumerate(zip(trained, data.classes, strict=True)):
        if then != now:
            raise _other_classes(folder, f"number {number} was {then!r}, and is {now!r}")


def _are_numbers(classes: list[str]) -> bool:
    """Whether classes are called by numbers, as where a data set has no names for them."""
    return classes == [str(number) for number in range(len(classes))]


def _other_classes(folder: Path, difference: str) -> UserError:
    return UserError(
        f"{folder} was trained on other classes than the data set has: {difference}. "
        "Give `data_dir` the data set that it was trained on"
    )
