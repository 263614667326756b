"""The page: contents into the template, with its style and script inside, and onto the disk."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..errors import UserError
from ..files import write_atomically
from .contents import Contents
from .curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart
from .missing import Missing
from .templates import FILES, templates_of


def render(contents: Contents) -> str:
    """One HTML document that needs nothing else. Everything from run folders is escaped."""
    environment = templates_of("report")
    environment.filters |= {"millions": millions, "duration": duration, "by_reason": by_reason, "microseconds": micro}
    environment.globals["box"] = {
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM,
    }  # fmt: skip
    page = environment.get_template("page.html").render(
        contents=contents,
        script=Markup((FILES / "page.js").read_text()),
        chart_data=Markup(chart_data(contents.charts, [section.title for section in contents.sections])),
    )
    return page.lstrip()


def write_page(contents: Contents, file: Path) -> int:
    """Whole or not at all; returns the number of bytes."""
    page = render(contents).encode()
    try:
        write_atomically(file, page)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}. Name another file with `out`") from None
    return len(page)


def chart_data(charts: Sequence[Chart], titles: Sequence[str]) -> str:
    """The charts as the page's script needs them. Nothing in it can end the element it is put into."""
    text = json.dumps({"runs": list(titles), "charts": [_values_of(chart) for chart in charts]}, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _values_of(chart: Chart) -> dict[str, Any]:
    """What it takes to read values off a chart."""
    return {
        "left": LEFT,
        "right": RIGHT,
        "lastEpoch": chart.last_epoch,
        "curves": [{key: value for key, value in asdict(c).items() if key != "path"} for c in chart.curves],
    }


def by_reason(missing: list[Missing]) -> dict[str, list[str]]:
    """Things that are missing for the same reason, told together."""
    grouped: dict[str, list[str]] = {}
    for one in missing:
        grouped.setdefault(one.reason, []).append(one.what)
    return grouped


def millions(count: float) -> str:
    """Millions with as many digits as say something: 0.0004M, 30.02M, 1814.1M."""
    value = count / 1e6
    return f"{value:.4f}M" if value < 1 else f"{value:.2f}M" if value < 100 else f"{value:,.1f}M"


def micro(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
