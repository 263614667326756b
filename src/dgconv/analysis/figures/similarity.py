"""How many of their channels two images share, layer by layer: see :mod:`dgconv.analysis.likeness`."""

import math

from ..likeness import measure_likeness
from ..trained_run import TrainedRun
from .style import BLUE, GREY, ORANGE, Drawing, entitle, in_house_style, new_figure


@in_house_style
def draw_similarity(run: TrainedRun, seed: int = 0) -> Drawing:
    recording = run.recording
    likeness = measure_likeness(recording, seed)
    curves, means = likeness.curves, likeness.means

    figure = new_figure(3.3)
    axes = figure.subplots()
    places = range(1, len(recording.layers) + 1)
    looks = {
        "same_class": ("o-", BLUE, "same class"),
        "other_classes": ("s-", ORANGE, "different classes"),
        "chance": ("--", GREY, "by chance"),
    }
    for name, (style, colour, label) in looks.items():
        axes.plot(places, curves[name], style, color=colour, label=f"{label}: {means[name]:.3f} on average")
    axes.fill_between(places, curves["other_classes"], curves["same_class"], color=BLUE, alpha=0.12, lw=0)
    axes.set(xlabel="dynamic layer, from the input on", ylabel="Jaccard index of the kept channels", ylim=(0, 1.02))
    axes.set_xlim(0.3, len(places) + 0.7)  # there is no layer 0
    if len(places) <= 24:
        axes.set_xticks(places)
    figure.legend(loc="outside lower center", ncols=3)
    images = len(recording.example_labels)
    entitle(figure, f"How many of their channels do two images share? {run.name}\nevery two of {images} test images")
    return Drawing(
        figure,
        {
            "layers": list(recording.layers),
            "images": images,
            "pairs": likeness.pairs,
            **{name: [_or_none(value) for value in values] for name, values in curves.items()},
            "mean": {name: _or_none(value) for name, value in means.items()},
        },
    )


def _or_none(index: float) -> float | None:
    """JSON has no NaN, which stands for a layer, or a whole network, where no image keeps anything."""
    return None if math.isnan(index) else index
