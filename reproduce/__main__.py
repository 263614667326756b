"""``python -m reproduce``: writes every page anew, or does what one of its commands says."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from dgconv.cli import politely
from dgconv_command import run_command

from .commands import add, costs, outputs, pages, publish, study
from .train import train
from .walks import walks

COMMANDS: dict[str, Callable[..., Any]] = {
    "pages": pages, "add": add, "publish": publish, "study": study, "train": train, "costs": costs,
    "outputs": outputs, "walks": walks,
}  # fmt: skip


def main(args: Sequence[str] | None = None) -> None:
    """Without the name of a command it is ``pages``."""
    given = list(sys.argv[1:] if args is None else args)
    is_named = any(arg in COMMANDS or arg in ("-h", "--help") for arg in given)
    politely(lambda: run_command(COMMANDS, given if is_named else ["pages", *given], prog="python -m reproduce"))


if __name__ == "__main__":
    main()
