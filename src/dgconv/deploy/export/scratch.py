"""A hidden folder beside the file that an export is to write. What a killed export leaves, the next one removes."""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ...files import hold

PREFIX = ".dgconv-export-"
LOCK, MARK = "lock", "made-by-dgconv-export"


@contextmanager
def scratch_folder(place: Path) -> Iterator[Path]:
    """A new folder in ``place``, on its disk, so that a file can be moved out of it at once; gone afterwards."""
    _remove_leftovers(place)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    lock = None
    try:
        lock = _hold(folder)
        if lock:  # only now: a folder with the mark and without a holder is one whose export is dead
            (folder / MARK).write_text(socket.gethostname())
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock:
            lock.release()


def _remove_leftovers(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        if _is_of_this_machine(folder) and (lock := _hold(folder)):
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


def _is_of_this_machine(folder: Path) -> bool:
    """Another machine's locks may not be seen here."""
    try:
        return not folder.is_symlink() and (folder / MARK).read_text() == socket.gethostname()
    except (OSError, UnicodeDecodeError):
        return False


def _hold(folder: Path) -> FileLock | None:
    """The lock; None where another process has it, or nobody can."""
    try:
        return hold(folder / LOCK)
    except Timeout:
        return None
