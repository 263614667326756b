"""The command line: a file for each command, a few lines over the library. Wrong use exits with 2 and no traceback.

A command is a module here without a leading underscore, and in it the function of its name, whose docstring and
arguments are its help and flags. One that reads its own arguments has ``run(args)``, too, and ``flags()``, a class of
what it takes, for the help and the completion of all commands together.
"""

import errno
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from dgconv_command import described_commands, named_command, reader_may_leave, run_command

from ..environment import is_lack_of_memory
from ..errors import UserError, visible
from ..train import Stopped, distributed

PACKAGE = Path(__file__).parents[1]
LESS = "Ask for less: a smaller --batch-size, --image-size or --examples, fewer --workers or networks at a time"
LOST_WORKER = re.compile(
    r"DataLoader worker \(pid ?(\d+)\) (?:is killed by signal: ([^.]+)\.|(exited unexpectedly[^.]*))"
)
WHY_LOST = {
    "Killed": "either by somebody or, if memory ran out, by the kernel",
    "Bus error": "mostly for lack of shared memory, as /dev/shm has it",
    "Segmentation fault": "a library failed on an image",
}
DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}


def main(args: Sequence[str] | None = None) -> None:
    given = sys.argv[1:] if args is None else args
    with distributed.exiting_at_once():
        politely(lambda: _run(given))


def _run(args: Sequence[str]) -> None:
    commands = described_commands()
    if (name := named_command(args)) is not None:
        module = _module(name)
        if hasattr(module, "run") and args[0].replace("_", "-") == name:
            module.run(args[1:])
            return
        commands[name] = _with_flags_of(name)
    elif any(arg.startswith("--tyro-") for arg in args):  # its shell completion, which has every flag
        commands = {name: _with_flags_of(name) for name in commands}
    run_command(commands, args)


def _module(command: str) -> ModuleType:
    return import_module(f"{__name__}.{command.replace('-', '_')}")


def _with_flags_of(command: str) -> Callable[..., Any]:
    module = _module(command)
    return module.flags() if hasattr(module, "run") else getattr(module, command.replace("-", "_"))


def politely(run: Callable[[], None]) -> None:
    """Runs a command; a mistake of the user's ends in a message and an exit status, not in a traceback."""
    warn_with_flags()
    try:
        with reader_may_leave():
            run()
    except UserError as error:
        _exit(2, told(error))
    except Stopped as stopped:
        _exit(stopped.exit_status, stopped.telling(f"To go on: {resume_command(stopped.folders)}"))
    except KeyboardInterrupt:
        _exit(130, "interrupted; a run folder keeps its last whole epoch")
    except (MemoryError, RuntimeError) as error:
        if lost := _lost_worker(error):
            _exit(2, f"{lost}. With fewer --workers less memory is needed, with 0 none of them is")
        if not is_lack_of_memory(error):
            raise
        _exit(2, f"there is not enough memory: {_first_line(error)}. {LESS}")
    except OSError as error:
        if not _is_the_users(error):
            raise
        where = os.fsdecode(error.filename) if error.filename else "a file could not be written"
        _exit(2, f"{where}: {error.strerror}. Mend that, or name another place")


def _exit(status: int, message: str) -> None:
    print(f"dgconv: {visible(message)}", file=sys.stderr)
    sys.exit(status)


def told(error: UserError) -> str:
    """An error in the words of the command line."""
    go_on = f". Go on with: {resume_command(error.resume)}" if error.resume else ""
    return with_flags(error.message) + go_on


def with_flags(message: str) -> str:
    """`data_dir`, as the library names its arguments, as --data-dir."""
    return re.sub(r"`([a-z][a-z0-9_]*)`", lambda found: f"--{found[1].replace('_', '-')}", message)


def resume_command(folders: Sequence[Path]) -> str:
    return f"dgconv train --resume {shlex.join(map(str, folders))}"


def warn_with_flags() -> None:
    """Warnings of the library name arguments, too; without a handler of its own Python would show them as they are."""

    class WithFlags(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return visible(with_flags(super().format(record)))

    logger = logging.getLogger("dgconv")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(WithFlags())
        logger.addHandler(handler)


def _lost_worker(error: BaseException | None) -> str | None:
    """What became of a process that decoded images, where one ended; torch tells it as the cause of what it raises."""
    while error is not None:
        if found := LOST_WORKER.search(str(error)):
            process, name, otherwise = found.groups()
            how = f"was ended by the signal {name!r}" if name else otherwise
            why = f": {WHY_LOST[name]}" if name in WHY_LOST else ""
            return f"process {process}, which decoded images, {how}{why}"
        error = error.__cause__
    return None


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0]
    return line[line.find("DefaultCPUAllocator") :].rstrip(".") if "DefaultCPUAllocator" in line else line.rstrip(".")


def _is_the_users(error: OSError) -> bool:
    """Whether it is about a file or a disk of the user's, and not about a part of dgconv that is missing."""
    if isinstance(error.filename, str | bytes):
        return not Path(os.fsdecode(error.filename)).absolute().is_relative_to(PACKAGE)
    return error.errno in DISK_TROUBLE
