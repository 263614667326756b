"""What is left of a run that ended before its first checkpoint, so that it can only be begun anew."""

import shutil
from pathlib import Path

from ..models.storage import CONFIG, WEIGHTS
from .checkpoint import CHECKPOINT
from .folder_lock import content_of
from .logs import METRICS
from .run_state import BEST

WRITTEN_BY_RUNS = {METRICS, "tensorboard", CONFIG, WEIGHTS, BEST, "diverged.safetensors"}


def remove_leftovers(folder: Path) -> None:
    """If there is nothing else in a folder, which this process must hold. What others put there stays."""
    content = content_of(folder)
    if (folder / CHECKPOINT).exists() or not all(map(_is_written_by_runs, content)):
        return
    for entry in content:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _is_written_by_runs(entry: Path) -> bool:
    return entry.name in WRITTEN_BY_RUNS or entry.name.startswith(".")
