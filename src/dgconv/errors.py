"""Mistakes of the user's, told apart from mistakes of ours."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

# Controls but line feed and tab; marks that turn the direction of writing; halves of characters, as of odd file names.
INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """A text in which nothing acts on a terminal: names of files, and what is in files, may hold escape sequences."""
    return INVISIBLE.sub(lambda found: ascii(found[0])[1:-1], text)


class UserError(ValueError):
    """Wrong use: the message says what was wrong, what is allowed and what to do.

    Arguments are named in backticks, as `data_dir`; the command line shows its flags in their place, prints the message
    without a traceback and exits with 2. ``resume`` are run folders to go on with, told in the words of either.
    """

    def __init__(self, message: str, *, resume: Sequence[Path] = ()) -> None:
        super().__init__(message)
        self.message, self.resume = visible(message), list(resume)

    def __str__(self) -> str:
        calls = [f"dgconv.train.resume({str(folder)!r})" for folder in self.resume]
        return f"{self.message}. Go on with {', '.join(calls)}" if calls else self.message


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name nobody registered, with the nearest known ones."""
    known = sorted(known)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {', '.join(known)}."
    return UserError(f"unknown {kind} {name!r}. {hint}")
