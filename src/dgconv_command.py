"""What the command ``dgconv`` starts. It is outside the package because importing that takes torch's seconds.

Help and a mistyped command do without it: the commands' descriptions are read from the files, not imported.
"""

import ast
import io
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

CLI = Path(__file__).with_name("dgconv") / "cli"


def main() -> None:
    """Ctrl-C during the imports ends the process at once: thrown into the middle of one, it fails in odd ways."""
    args = sys.argv[1:]
    if args == ["--version"]:
        with reader_may_leave():
            print("dgconv", version("dgconv"))
        return
    is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # and not ignored, as by nohup
    if is_pythons:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if named_command(args) is None and not any(arg.startswith("--tyro-") for arg in args):  # its shell completion
        with suppress(OSError), reader_may_leave():  # and exits; on a full disk the package tells it in words
            run_command(described_commands(), args)
    from dgconv.cli import main as run

    if is_pythons:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def run_command(commands: dict[str, Callable[..., Any]], args: Sequence[str], prog: str = "dgconv") -> None:
    """Calls the one that ``args`` name; help and wrong use exit."""
    import tyro

    with wrapping_help(args):
        tyro.extras.subcommand_cli_from_dict(
            commands,
            prog=prog,
            description="Dynamic group convolution. 'dgconv --version' tells the version.",
            args=args,
            sort_subcommands=False,
        )


@contextmanager
def wrapping_help(args: Sequence[str]) -> Iterator[None]:
    """Around what prints help: tyro wraps the flags, but not what a command is about."""
    if not {"-h", "--help"} & set(args):
        yield
        return
    printed = _Paper(sys.stdout)
    try:
        with redirect_stdout(printed):
            yield
    finally:
        width = shutil.get_terminal_size((80, 24)).columns
        for line in printed.getvalue().splitlines():
            print(line if line[:1] in (" ", "│", "╭", "╰", "\x1b") else textwrap.fill(line, width))


class _Paper(io.StringIO):
    """Takes what is meant for the terminal, in the colours and letters that it would have there."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.terminal.encoding


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Around what prints: a reader that has seen enough, as 'head' does, is no error with a traceback."""
    try:
        try:
            yield
        finally:  # help exits
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be written
        sys.exit(1)


def list_commands() -> list[str]:
    """A file each."""
    return sorted(path.stem.replace("_", "-") for path in CLI.glob("*.py") if not path.name.startswith("_"))


def named_command(args: Sequence[str]) -> str | None:
    """The first of the arguments that is a command, with - or _ as tyro has it."""
    return next((name for arg in args if (name := arg.replace("_", "-")) in list_commands()), None)


def described_commands() -> dict[str, Callable[..., Any]]:
    """Functions that stand for commands where these are only listed: they have the description, and do nothing."""
    return {name: _described(name.replace("-", "_")) for name in list_commands()}


def _described(name: str) -> Callable[[], None]:
    def command() -> None: ...

    for node in ast.parse((CLI / f"{name}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            command.__doc__ = ast.get_docstring(node)
    return command
