"""What is left of a run that ended before its first checkpoint, so that it can only be begun anew."""

import shutil
from pathlib import Path

from ..errors import UserError
from ..files import UNFINISHED
from .config import read_config
from .lock import content_of
from .names import CHECKPOINT, CONFIG, WRITTEN_BY_RUNS


def remove_leftovers(folder: Path) -> None:
    """If there is nothing else in a folder, which this process must hold. What others put there stays.

    So does a network whose checkpoint somebody has removed: it would have to be trained again.
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
