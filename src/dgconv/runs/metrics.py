"""What a run writes down as it goes: its metrics and, where TensorBoard is installed, event files."""

import json
import math
import os
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_whole, write_atomically
from ..values import load_json
from .names import METRICS, TENSORBOARD


@dataclass(frozen=True)
class EpochMetrics:
    """What is told of an epoch: a line of the metrics. Errors are in percent."""

    epoch: int
    learning_rate: float
    target_pruned_share: float
    train_loss: float
    train_error: float
    test_loss: float
    test_error: float
    test_error_top5: float
    pruned_share: float | None
    threshold: float | None
    images_per_second: float
    seconds: float
    skipped_images: int | None = None  # corrupt ones, of training and test together; None where they are an error
    overflowing_images: int = 0  # test images for which the network has no finite answer
    first_step_seconds: float | None = None  # of a start: compiling and capturing included; None in later epochs


EPOCH_METRICS = {field.name for field in fields(EpochMetrics)}
LONGEST_FILE = 32 * 2**20  # bytes, of a hundred thousand epochs
ALWAYS_THERE = {"epoch", "test_error", "seconds"}  # and never null


class RunLog:
    """One line an epoch. A resumed run drops the lines its checkpoint does not know of and goes on behind the rest.

    So it does with what a machine that lost its power has left of a line.
    """

    def __init__(self, folder: Path, epochs_done: int = 0) -> None:
        self.folder, self.path, self.epochs_done = folder, folder / METRICS, epochs_done
        content = read_whole(self.path, LONGEST_FILE) if self.path.exists() else b""
        whole = b"".join(line + b"\n" for line in content.splitlines()[:epochs_done] if _is_json(line))
        if whole != content:
            write_atomically(self.path, whole)

    @cached_property
    def board(self) -> Any:
        """Opened with the first epoch: a training that ends before leaves an empty folder, which can be used again."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        purge = self.epochs_done + 1 if self.epochs_done else None
        return SummaryWriter(str(self.folder / TENSORBOARD), purge_step=purge)

    def write(self, metrics: dict[str, Any]) -> None:
        metrics = {name: None if _is_odd(value) else value for name, value in metrics.items()}
        with self.path.open("a") as file:
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())  # before the checkpoint that counts this epoch
        if self.board:
            for name, value in metrics.items():
                if name != "epoch" and value is not None:
                    self.board.add_scalar(name, value, metrics["epoch"])
            self.board.flush()

    def close(self) -> None:
        """Ends the thread that writes event files."""
        if vars(self).get("board"):
            self.board.close()


def _is_json(line: bytes) -> bool:
    try:
        load_json(line)
    except ValueError:
        return False
    return True


def _is_odd(value: Any) -> bool:
    """NaN and infinity, which JSON does not know."""
    return isinstance(value, float) and not math.isfinite(value)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics of every epoch; None for what was no number."""
    path = folder / METRICS
    try:
        lines = read_whole(path, LONGEST_FILE).decode().splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}. Remove the damaged line, or the file") from None
    return [_read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _read_line(line: str, where: str) -> dict[str, Any]:
    try:
        metrics = load_json(line, nan=None)  # NaN, as older versions wrote it
    except ValueError as error:
        raise UserError(f"{where} is no JSON: {error}. Resume the run, which repairs it, or remove the line") from None
    if not isinstance(metrics, dict):
        raise UserError(f"{where} is {line[:40]!r}; expected the metrics of an epoch. Remove the line")
    for name in EPOCH_METRICS & metrics.keys() | ALWAYS_THERE:
        value = metrics.get(name)
        if type(value) not in (int, float) and (value is not None or name in ALWAYS_THERE):
            raise UserError(f"{where}: {name!r} must be a number, got {value!r}. Remove the line, or the file")
    return metrics
