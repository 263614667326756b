"""Locks that the kernel lets go of however a process ends."""

import warnings
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, SoftFileLock, Timeout


def hold(path: Path) -> FileLock | None:
    """Until it is released or the process ends; ``Timeout`` where another process has it.

    None on a file system that knows no locks, or where nothing may be written.
    """
    lock = FileLock(path)
    try:
        with warnings.catch_warnings(action="ignore"):
            lock.acquire(timeout=0)
    except Timeout:  # which is an OSError, too
        raise
    except (OSError, NotImplementedError):
        return None
    if isinstance(lock, SoftFileLock):  # what filelock takes instead of a missing lock would outlive a killed process
        lock.release()
        return None
    return lock


def hold_open_file(file: BinaryIO) -> bool:
    """Until it is closed. False where somebody else has it open and holds it, or where there are no locks."""
    try:
        import fcntl  # which Windows has not

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
