"""Files that are there whole or not at all, locks, and places that can be written to: asked before long work."""

import errno
import os
import secrets
import stat
import tempfile
import warnings
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, SoftFileLock, Timeout

from .errors import UserError

UNFINISHED = ".unfinished"
LONGEST = 50  # characters of a file's name in that of an unfinished one, which must not become too long


def read_whole(path: Path, most: int) -> bytes:
    """What is in a file; an ``OSError`` where it is none, as a pipe that nobody writes to, or has too many bytes."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise OSError(errno.EFBIG, f"it has {max(size, len(content)):,} bytes; at most {most:,} are read", str(path))
    return content


def open_file(path: Path) -> BinaryIO:
    """A file to be read from; an ``OSError`` where it is none. Who opens a pipe would wait for its other end."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
    return file


def write_atomically(path: Path, data: bytes) -> None:
    """All or nothing: a reader sees the old file or the new one, whenever the machine stops.

    A link stays one, and what is no file, a device or a pipe, is not replaced by one but written to. Who may read a new
    file is for the umask to say.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
    _remove_leftovers(path)
    temporary = path.parent / f".{path.name[:LONGEST]}.{secrets.token_hex(8)}{UNFINISHED}"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)  # mkstemp would leave out the umask
    try:
        with os.fdopen(descriptor, "wb") as file:
            hold_open_file(file)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_leftovers(path: Path) -> None:
    """Removes what killed writers left. One at work holds its file before it writes, so one that is empty is let be."""
    for leftover in path.parent.glob(f".{escape(path.name[:LONGEST])}.*{UNFINISHED}"):
        with suppress(OSError), leftover.open("r+b") as file:
            if os.fstat(file.fileno()).st_size and hold_open_file(file):
                leftover.unlink()


def check_file(file: Path) -> None:
    """Refuse a file that could not be written."""
    real = Path(os.path.realpath(file))  # a link stays one, and what it leads to is written
    folder = real.parent
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file, such as {file / 'NAME'}")
    if real.is_symlink():
        raise UserError(f"{file} cannot be written: {real} is a link that leads nowhere; name another file")
    if not folder.is_dir():
        raise UserError(f"{file} cannot be written: {folder} is not a folder; make it first, or name another file")
    if file.is_file() or not file.exists():  # a device or a pipe needs no room
        _try_writing(folder, file)


def check_folder(folder: Path) -> None:
    """Refuse a folder, new or not, that nothing could be written to. It is not made."""
    places = (folder.absolute(), *folder.absolute().parents)
    if broken := next((place for place in places if place.is_symlink() and not place.exists()), None):
        raise UserError(f"{folder} cannot be a folder, because {broken} is a link that leads nowhere; name another one")
    place = next(place for place in places if place.exists())
    if not place.is_dir():
        raise UserError(f"{folder} cannot be a folder, because {place} is a file; name another one")
    _try_writing(place, folder)


def _try_writing(folder: Path, wanted: Path) -> None:
    """Tries with a file that leaves nothing behind: rights alone do not tell of a disk that is read-only or full."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise UserError(f"{wanted} cannot be written: {error.strerror}. Name another place, or mend that") from None


def hold(path: Path) -> FileLock | None:
    """Locks a file until it is released or the process ends; ``Timeout`` where another process has it.

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
    """Locks a file until it is closed. False where somebody else holds it, or where there are no locks."""
    try:
        import fcntl  # which Windows has not

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
