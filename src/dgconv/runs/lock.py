"""A run folder belongs to one process at a time: two that train in it would spoil each other's files."""

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import UserError
from ..files import hold
from .names import LOCK


@contextmanager
def locked(folders: Iterable[Path]) -> Iterator[None]:
    """Hold these folders, as long as this process lives at most: the kernel lets go of them however it ends.

    On a file system that knows no locks, or where nothing may be written, there is none, and work goes on without.
    """
    with ExitStack() as held:
        for folder in folders:
            if lock := _lock(folder):
                held.callback(lock.release)
        yield


def _lock(folder: Path) -> FileLock | None:
    if not folder.is_dir():
        return None
    path = folder / LOCK
    try:
        lock = hold(path)
    except Timeout:
        raise UserError(
            f"{folder} is in use: {_holder(path)} trains in it. Wait until it is done, or stop it with Ctrl-C or "
            "SIGTERM, upon which it saves",
            resume=[folder],
        ) from None
    if lock is None:
        return None
    with suppress(OSError):
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
    return lock


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip() or "another process"
    return "another process"
