"""What there is in a run folder, and removing what is left of a run that ended early."""

import shutil
from contextlib import suppress
from pathlib import Path

from ..errors import UserError
from ..files import UNFINISHED
from .config import read_config
from .names import CHECKPOINT, CONFIG, LOCK, WRITTEN_BY_RUNS


def content_of(folder: Path) -> list[Path]:
    """Everything in a folder but its lock."""
    return [entry for entry in folder.iterdir() if entry.name != LOCK]


def remove_if_empty(folder: Path) -> None:
    """Remove a folder in which there is nothing, or only a lock."""
    with suppress(OSError):
        if not content_of(folder):
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Removes what a run wrote that ended before its first checkpoint, for it can only be begun anew.

    If there is nothing else in the folder, which this process must hold. What others put there stays. So does a
    network whose checkpoint somebody has removed: it would have to be trained again.
    """
    content = content_of(folder)
    if (folder / CHECKPOINT).exists() or not all(map(_is_written_by_runs, content)):
        return
    if _had_checkpoint(folder):
        raise UserError(
            f"{folder} holds a trained network, but no {CHECKPOINT} to go on from. "
            "Put that back, or move the folder away to train anew"
        )
    for entry in content:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _is_written_by_runs(entry: Path) -> bool:
    return entry.name in WRITTEN_BY_RUNS or (entry.name.startswith(".") and entry.name.endswith(UNFINISHED))


def _had_checkpoint(folder: Path) -> bool:
    """Whether a checkpoint was there once. After the first epoch of several, other files are there before any is."""
    if not (folder / CONFIG).exists():
        return False
    config = read_config(folder)
    done, epochs = config.get("epochs_done", 0), config.get("recipe", {}).get("training", {}).get("epochs", 0)
    return bool(done > 1 or done >= epochs)
