"""Tables as plain text, and tables that fit a terminal."""

import shutil
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from .errors import visible

GAP = 2  # between columns


class PlainConsole(Console):
    """Shows text as it is: names of files may hold rich's marks, as [b] or :x:, and a terminal's escape sequences."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def text_width() -> int:
    """As wide as the terminal is, and in a file 80 columns."""
    return shutil.get_terminal_size((80, 24)).columns


def as_text(table: RenderableType) -> str:
    """What rich would show, without colours: for ``__str__``."""
    console = PlainConsole(width=text_width(), color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip()


def width_of(table: RenderableType) -> int:
    """How many columns it takes where it has room."""
    return PlainConsole(width=10_000).measure(table).maximum


def print_table(
    console: Console, title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], less_needed: Sequence[str]
) -> None:
    """A table of which no cell is cut: what does not fit a narrow terminal is left out, and named below.

    Args:
        columns: one that may wrap has a ``min_width``.
        less_needed: headings of columns that may be left out, the first one first.
    """
    shown = list(range(len(columns)))
    widths = [_width(column, [row[i] for row in rows]) for i, column in enumerate(columns)]
    least = [column.min_width or width for column, width in zip(columns, widths, strict=True)]

    def room() -> int:
        return console.width - sum(least[i] + GAP for i in shown)

    for heading in less_needed:
        if room() >= 0:
            break
        shown.remove(next(i for i in shown if columns[i].header == heading))
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", collapse_padding=True, pad_edge=False)
    left = max(0, room())
    for i in shown:
        extra = min(left, widths[i] - least[i])
        left -= extra
        table.add_column(columns[i].header, justify=columns[i].justify, overflow="fold", width=least[i] + extra)
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    console.print(table)
    if left_out := [" ".join(str(column.header).split()) for i, column in enumerate(columns) if i not in shown]:
        console.print(f"Left out, as the terminal is too narrow: {'; '.join(left_out)}.", highlight=False)


def _width(column: Column, cells: Sequence[str]) -> int:
    return max(cell_len(line) for text in (str(column.header), *cells) for line in text.split("\n"))
