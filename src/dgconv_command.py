"""What the command ``dgconv`` starts. It is outside the package because importing that takes torch's seconds.

Help and a mistyped command do without it: the commands' descriptions are read from the files, not imported.
"""

import ast
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

COMMANDS = {  # in the order of the help: the module in dgconv, and what in it has the description and the options
    "train": ("train_arguments", "TrainArguments"),
    "recipes": ("cli", "recipes"),
    "eval": ("cli", "eval"),
    "macs": ("cli", "macs"),
    "models": ("cli", "models"),
    "import-authors": ("cli", "import_authors"),
    "export": ("cli_deploy", "export"),
    "bench": ("cli_deploy", "bench"),
    "figures": ("cli_look", "figures"),
    "explore": ("cli_explore", "explore"),
    "compare": ("cli_compare", "compare"),
    "results": ("cli_results", "results"),
    "reproduce": ("cli_reproduce", "reproduce"),
    "report": ("cli_report", "report"),
}


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
    if not _needs_options(args):
        with suppress(OSError), reader_may_leave():  # and exits; on a full disk the package tells it in words
            run_command({name: _without_options(*place) for name, place in COMMANDS.items()}, args)
    from dgconv.cli import main as run

    if is_pythons:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def run_command(commands: dict[str, Callable[..., Any]], args: Sequence[str]) -> None:
    """Calls the one that ``args`` name; help and wrong use exit."""
    import tyro

    tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="dgconv",
        description="Dynamic group convolution. 'dgconv --version' tells the version.",
        args=args,
        sort_subcommands=False,
    )


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


def _needs_options(args: Sequence[str]) -> bool:
    """Whether a command is named, with - or _ as tyro has it, or tyro's shell completion, which has all options."""
    return any(arg.replace("_", "-") in COMMANDS or arg.startswith("--tyro-") for arg in args)


def _without_options(module: str, name: str) -> Callable[[], None]:
    """Stands for a command where it is only listed: has its description, and is never called."""

    def command() -> None: ...

    source = Path(__file__).with_name("dgconv").joinpath(f"{module}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            command.__doc__ = ast.get_docstring(node)
    return command
