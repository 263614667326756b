"""A report shows what can be had, and says what cannot and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Missing:
    what: str
    reason: str


def attempt(what: str, get: Callable[[], T], missing: list[Missing]) -> T | None:
    """What ``get`` gives; None if the run does not allow it, which is then noted."""
    try:
        return get()
    except UserError as error:
        missing.append(Missing(what, str(error)))
        return None
