"""The tables of how dynamic gates are, and of what is left of their generators; measured when a record is made."""

import statistics
from collections.abc import Callable
from typing import Any

from .groups import Group
from .markdown import table
from .rows import Row, list_numbers

Facts = dict[str, Any]  # of one record
Column = tuple[str, Callable[[Facts], float], str]  # heading, value and how it is written

GATES: list[Column] = [
    ("share of kept channels, same class", lambda facts: facts["overlap"]["same_class"], "{:.3f}"),
    ("other classes", lambda facts: facts["overlap"]["other_classes"], "{:.3f}"),
    ("by chance", lambda facts: facts["overlap"]["chance"], "{:.3f}"),
    ("channels that jump", lambda facts: 100 * facts["jumping"], "{:.1f} %"),
    ("saliencies vary by", lambda facts: 100 * facts["variation"], "{:.1f} %"),
    ("error", lambda facts: facts["error"], "{:.2f} %"),
    ("one choice for all", lambda facts: facts["error_one_choice"], "{:.2f} %"),
    ("one gate for all", lambda facts: facts["error_one_gate"], "{:.2f} %"),
]
GENERATORS: list[Column] = [
    ("mean abs W1", lambda facts: facts["generator"]["weight1"], "{:.4f}"),
    ("mean abs W2", lambda facts: facts["generator"]["weight2"], "{:.4f}"),
    ("mean abs bias", lambda facts: facts["generator"]["bias"], "{:.4f}"),
    ("W1 like its start", lambda facts: facts["like_start"]["weight1"], "{:.2f}"),
    ("W2 like its start", lambda facts: facts["like_start"]["weight2"], "{:.2f}"),
]

ABOUT = """\
Two test images share so much of the channels they keep: the Jaccard index, averaged over heads, layers and pairs of
images, as in `dgconv figures RUN --only similarity`. At 1 the choice is the same for every image; the last column of
the three is what choices at random would share. A channel jumps if some test images keep it and others do not. The
saliencies of the channels that most images keep vary over the images by so much of their mean.

The last two errors are those of the same network, not trained any further, when its gates are frozen: *one choice for
all* keeps for every image the channels of the average saliency, still scaled by the image's own saliencies; *one gate
for all* scales them by the average, too, and is a static network. All three errors are measured in float32.

The second table is about the saliency generators, over all layers; its last two columns are the cosine between their
weights and what these were before training."""


def gates_table(groups: list[Group]) -> str:
    """A line in each of the two tables for every result whose gates were measured; empty if there is none."""
    tables = [_table(groups, columns) for columns in (GATES, GENERATORS)]
    return "\n\n".join(filter(None, tables))


def _table(groups: list[Group], columns: list[Column]) -> str:
    lines = []
    for group in groups:
        measured = {record.seed: record.gates for record in group.finished if record.gates}
        if measured:
            seeds = list_numbers(measured)
            cells = [_mean(list(measured.values()), value, form) for _, value, form in columns]
            lines.append([Row.of_group(group).title, seeds, *cells])
    return table(["recipe", "seeds", *(heading for heading, *_ in columns)], lines) if lines else ""


def _mean(measured: list[Facts], value: Callable[[Facts], float], form: str) -> str:
    """The mean over the seeds; nothing where a record is older than the measure."""
    try:
        return form.format(statistics.mean(map(value, measured)))
    except KeyError:
        return ""
