"""Whether there will be a place for a result: asked before long work, not found out after it."""

import os
import tempfile
from pathlib import Path

from .errors import UserError


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
        _try(folder, file)


def check_folder(folder: Path) -> None:
    """Refuse a folder, new or not, that nothing could be written to. It is not made."""
    places = (folder.absolute(), *folder.absolute().parents)
    if broken := next((place for place in places if place.is_symlink() and not place.exists()), None):
        raise UserError(f"{folder} cannot be a folder, because {broken} is a link that leads nowhere; name another one")
    place = next(place for place in places if place.exists())
    if not place.is_dir():
        raise UserError(f"{folder} cannot be a folder, because {place} is a file; name another one")
    _try(place, folder)


def _try(folder: Path, wanted: Path) -> None:
    """With a file that leaves nothing behind: rights alone do not tell of a disk that is read-only or full."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise UserError(f"{wanted} cannot be written: {error.strerror}. Name another place, or mend that") from None
