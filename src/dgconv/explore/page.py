"""The page as one self-contained file, for the server and for the disk alike."""

import html
import json
from collections.abc import Callable, Sequence
from importlib import resources
from string import Template
from typing import Any

from .images import MAX_BYTES
from .session import Session

ASSETS = resources.files("dgconv.explore") / "assets"
SCRIPTS = ("masks.js", "source.js", "cards.js", "grids.js", "page.js")


def live_page(session: Session, ids: Sequence[str]) -> str:
    """A page that asks the server for whatever it shows."""
    return _page(session.describe(ids) | {"maxBytes": MAX_BYTES})


def static_page(session: Session, ids: Sequence[str], tell: Callable[[float], None]) -> str:
    """A page that holds the answers for these images at every rate; ``tell`` hears of each rate before it is done."""
    looks: dict[str, list[dict[str, Any]]] = {id: [] for id in ids}
    averages = []
    for rate in session.rates:
        tell(rate)
        averages.append(session.average(rate))
        for id in ids:
            looks[id].append(session.look(id, rate))
    return _page(session.describe(ids) | {"looks": looks, "averages": averages, "worth": session.worth()})


def _page(data: dict[str, Any]) -> str:
    return Template(_asset("page.html")).substitute(
        title=html.escape(f"{data['run']} · dgconv explore"),
        style=_asset("style.css"),
        script="\n".join(map(_asset, SCRIPTS)),
        data=json.dumps(data).replace("<", "\\u003c"),  # no class name may end the script element
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")
