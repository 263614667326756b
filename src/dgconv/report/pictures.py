"""The figures of :mod:`dgconv.analysis.figures`, each as an address that holds the whole picture."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..analysis.figures import Drawing
from ..analysis.figures.style import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PNG_DOTS_PER_INCH = 160  # sharp enough on a page, and a third less than for print


@dataclass(frozen=True)
class Caption:
    """``about`` says what there is to see."""

    title: str
    about: str


CAPTIONS = {
    "training": Caption(
        "How it was trained",
        "Nothing is left out during the warm-up; then the share left out rises to its target, and stays there.",
    ),
    "contributions": Caption(
        "What channels contribute",
        "What two images get from every input channel of one layer, and which of these channels each of them keeps.",
    ),
    "maps": Caption(
        "Which channels images choose",
        "Where rows differ from image to image, the choice depends on what is in the image.",
    ),
    "probabilities": Caption(
        "Jumping and freezing channels",
        "A channel that every image keeps, or none does, could be decided once and for all. The others jump.",
    ),
    "layer_rates": Caption("What each layer leaves out", "One threshold for all layers lets them differ."),
    "similarity": Caption(
        "Do similar images choose similarly?",
        "If choices adapt to what is seen, images of one class share more channels than images of two.",
    ),
    "rate_sweep": Caption("Other budgets", "The same weights, asked to keep more or fewer channels than in training."),
    "adaptive_budget": Caption(
        "A budget for each image", "A cheap look first, and a second, dearer one only where the answer is unsure."
    ),
    "time_split": Caption("Where the time goes", "One call of the prepared network, on this machine's CPU."),
    "error_over_macs": Caption("Error over cost", "Down and to the left is better. Hollow marks are the paper's."),
    "ablation": Caption("Heads and pruning rate", "One is varied, the other one stays."),
}


@dataclass(frozen=True)
class Picture:
    name: str
    caption: Caption
    address: str  # a data URI
    width: int  # in pixels of a page
    height: int


def draw_picture(name: str, draw: Callable[[], Drawing]) -> Picture:
    """Draws a figure as SVG or PNG, whichever is smaller."""
    import matplotlib

    figure = draw().figure
    _take_words_literally(figure)
    files = {"svg+xml": io.BytesIO(), "png": io.BytesIO()}
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        figure.savefig(files["svg+xml"], format="svg", metadata={"Date": None})
        figure.savefig(files["png"], format="png", dpi=PNG_DOTS_PER_INCH)
    kind, file = min(files.items(), key=lambda item: len(item[1].getvalue()))
    address = f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return Picture(name, CAPTIONS.get(name) or Caption(name.replace("_", " "), ""), address, width, height)


def _take_words_literally(figure: "Figure") -> None:
    """Names of runs and classes may hold dollar signs, which matplotlib would read as formulas."""
    for axes in figure.axes:
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            text.set_parse_math(False)
    for text in figure.texts:
        text.set_parse_math(False)
