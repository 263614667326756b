"""Pages from templates: how they are filled in, here and for other reports."""

from importlib import resources

import jinja2
from markupsafe import Markup

from ..version import __version__

FILES = resources.files("dgconv") / "report"


def templates_of(folder: str) -> jinja2.Environment:
    """The templates in a folder of the package, which may extend the reports' ``document.html``.

    What is put into them is escaped, and what is missing is a mistake.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("dgconv", place) for place in (folder, "report")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"style": Markup((FILES / "page.css").read_text()), "version": __version__}
    return environment
