"""Mistakes of the user's, told apart from mistakes of ours."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Wrong use: the message says what was wrong, what is allowed and what to do.

    The command line prints it without a traceback and exits with 2.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name nobody registered, with the nearest known ones."""
    known = sorted(known)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {', '.join(known)}."
    return UserError(f"unknown {kind} {name!r}. {hint}")
