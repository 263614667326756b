"""The table of how dynamic gates are; they are measured when a record is made."""

import statistics

from ..analysis.gate_facts import GENERATOR
from .groups import Group
from .markdown import table
from .rows import Row

HEADINGS = (
    "recipe", "seeds", "share of kept channels, same class", "other classes", "by chance", "channels that jump",
    "mean abs W1", "mean abs W2", "mean abs bias", "W1 like its start", "W2 like its start",
)  # fmt: skip
OVERLAP = ("same_class", "other_classes", "chance")

ABOUT = """\
Two test images share so much of the channels they keep: the Jaccard index, averaged over heads, layers and pairs of
images, as in `dgconv figures RUN --only similarity`. At 1 the choice is the same for every image, and the network is
a static one; the last column of the three is what choices at random would share. A channel jumps if some test images
keep it and others do not. W1, W2 and bias are the saliency generators', over all layers; the last two columns are the
cosine between a generator's weights and what they were before training."""


def gates_table(groups: list[Group]) -> str:
    """A line for every result whose gates were measured; empty if there is none."""
    lines = []
    for group in groups:
        measured = [record.gates for record in group.finished if record.gates]
        if not measured:
            continue
        row = Row.of_group(group)
        seeds = " ".join(str(record.seed) for record in group.finished if record.gates)
        overlap = [f"{statistics.mean(m['overlap'][kind] for m in measured):.3f}" for kind in OVERLAP]
        jumping = f"{100 * statistics.mean(m['jumping'] for m in measured):.1f} %"
        generator = [f"{statistics.mean(m['generator'][part] for m in measured):.4f}" for part in GENERATOR]
        start = [f"{statistics.mean(m['like_start'][part] for m in measured):.2f}" for part in ("weight1", "weight2")]
        lines.append([row.title, seeds, *overlap, jumping, *generator, *start])
    return table(HEADINGS, lines) if lines else ""
