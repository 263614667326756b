"""The pictures of the result page: drawn from the records, and drawn again only if their numbers have changed."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dgconv.analysis.figures.ablation import draw_ablation
from dgconv.analysis.figures.style import Drawing, check_matplotlib, numbers_in
from dgconv.analysis.figures.tradeoff import draw_tradeoff
from dgconv.analysis.trained_run import TrainedRun
from dgconv.errors import UserError

from .groups import Group
from .wanted import all_wanted, groups_of

Draw = Callable[[Sequence[TrainedRun]], Drawing]
PICTURES: dict[str, tuple[str, Draw]] = {
    "tradeoff.svg": ("What a lower error costs", draw_tradeoff),
    "ablation.svg": ("How many heads, and how much to leave out", draw_ablation),
}


def draw_pictures(groups: list[Group]) -> dict[str, Drawing]:
    """Pictures of the finished runs that the tables want, by file name; those for which there are enough."""
    records = [record for row in all_wanted() for group in groups_of(row, groups) for record in group.finished]
    drawings = {}
    if records:
        check_matplotlib()  # without which there would seem to be no pictures
        for name, (_, draw) in PICTURES.items():
            with suppress(UserError):  # it needs other runs
                drawings[name] = draw(records)
    return drawings


def shows(path: Path, drawing: Drawing) -> bool:
    """Whether a picture has the numbers of a drawing. Its lines may differ: other versions draw otherwise."""
    return path.exists() and numbers_in(path.read_bytes()) == json.loads(json.dumps(drawing.numbers))


def links_to(names: Sequence[str]) -> str:
    """Links to the pictures, for the page beside them."""
    return "\n\n".join(f"![{PICTURES[name][0]}]({name})" for name in names)
