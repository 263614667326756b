"""One HTML file about one or several runs: results beside the paper's, curves, figures, layers, recipe.

:mod:`~dgconv.report.contents` gathers what the page shows, :mod:`~dgconv.report.page` makes HTML of it.
"""

from .contents import ALL_FIGURES, Contents, gather
from .page import render, write_page

__all__ = ["ALL_FIGURES", "Contents", "gather", "render", "write_page"]
