"""How every figure looks: fonts, sizes and colours that colour-blind readers tell apart; and how it is written."""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec
from xml.etree import ElementTree

from ...errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#8A8A8A"
SERIES = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P")
SALIENCY_MAP = "cividis"

WIDTH = 7.2  # inches: the text width of a page
PNG_DOTS_PER_INCH = 200
TITLE_SIZE, TITLE_LETTERS = 10.5, 80  # points; letters of that size that fit into the width
STYLE = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.hashsalt": "dgconv",  # the same figure, the same file
    "savefig.facecolor": "white",
}
LARGE_TYPE = {"font.size": 10.5, "axes.titlesize": 10.5, "axes.labelsize": 10.5}


def look_of(number: int) -> tuple[str, str]:
    """Colour and marker of one of several series; no two of the first thirty-six have both in common."""
    repeated = number // len(SERIES)
    return SERIES[number % len(SERIES)], MARKERS[(number + repeated) % len(MARKERS)]


class Drawing(NamedTuple):
    """A figure, and the numbers it shows, ready for JSON."""

    figure: "Figure"
    numbers: dict[str, Any]

    def as_svg(self) -> bytes:
        """The picture with the numbers as its description, which :func:`numbers_in` reads."""
        with _style():
            file = io.BytesIO()
            self.figure.savefig(file, format="svg", metadata={"Date": None, "Description": json.dumps(self.numbers)})
        return file.getvalue()

    def save(self, folder: Path, name: str) -> list[Path]:
        """Writes it as SVG for print, as PNG to look at, and the numbers as JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        svg, png, numbers = (folder / f"{name}.{suffix}" for suffix in ("svg", "png", "json"))
        with _style():
            self.figure.savefig(svg, metadata={"Date": None})
            self.figure.savefig(png, dpi=PNG_DOTS_PER_INCH)
        numbers.write_text(json.dumps(self.numbers, indent=2, allow_nan=False) + "\n")
        return [svg, png, numbers]


def numbers_in(svg: bytes) -> dict[str, Any] | None:
    """What an SVG file shows, if it says so."""
    try:
        description = ElementTree.fromstring(svg).find(".//{http://purl.org/dc/elements/1.1/}description")
        return None if description is None else json.loads(description.text or "null")
    except (ElementTree.ParseError, ValueError):  # somebody has edited it
        return None


def check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError('figures need matplotlib, which is not installed: pip install "dgconv[figures]"') from None


def _style(other: dict[str, float] | None = None) -> AbstractContextManager[None]:
    import matplotlib

    return matplotlib.rc_context(STYLE | (other or {}))  # type: ignore[arg-type]


P = ParamSpec("P")


def in_house_style(draw: Callable[P, Drawing], **other: float) -> Callable[P, Drawing]:
    """Decorates every function that draws; ``other`` settings are its own."""

    @wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> Drawing:
        check_matplotlib()
        with _style(other):
            return draw(*args, **options)

    return drawn


def in_large_type(draw: Callable[P, Drawing]) -> Callable[P, Drawing]:
    """Decorates what draws many small panels, among which letters would be lost."""
    return in_house_style(draw, **LARGE_TYPE)


def new_figure(height: float) -> "Figure":
    """Makes a figure without pyplot, which would want a screen and keep every figure in memory."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def entitle(figure: "Figure", text: str) -> None:
    """Names of runs can be long: the letters are made as small as the longest line needs."""
    letters = TITLE_LETTERS * figure.get_figwidth() / WIDTH
    longest = max(map(len, text.splitlines()))
    figure.suptitle(text, fontsize=TITLE_SIZE * min(1, letters / longest), parse_math=False)


def about_seeds(errors: Iterable[Sequence[float]]) -> str:
    """A line for the title of a figure with a bar or point for the errors of several seeds, if there are such."""
    return "\nof several seeds the mean, and their range" if any(len(of_seeds) > 1 for of_seeds in errors) else ""


def in_millions(axes: "Axes") -> None:
    """The x axis counts MACs."""
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}")
