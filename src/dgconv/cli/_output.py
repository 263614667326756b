"""How commands print: tables for people, or JSON."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..text import PlainConsole

T = TypeVar("T")

console = PlainConsole(width=None if sys.stdout.isatty() else 200)  # a file has room for every table


def show_each(items: Sequence[T], as_json: bool, to_json: Callable[[T], Any], tabulate: Callable[[T], None]) -> None:
    """Several in a row; as JSON one object, or a list if there are several."""
    if as_json:
        values = [to_json(item) for item in items]
        print(json.dumps(values if len(values) > 1 else values[0], indent=2))
    else:
        for item in items:
            tabulate(item)


def show(value: Any, as_json: bool, tabulate: Callable[[Any], Any]) -> None:
    """A value as JSON, or whatever ``tabulate`` prints of it."""
    if as_json:
        print(json.dumps(value, indent=2))
    else:
        tabulate(value)


def millions(count: float) -> str:
    return f"{count / 1e6:.3f}M"
