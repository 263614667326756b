"""What a run writes down as it goes: ``metrics.jsonl`` and, where TensorBoard is installed, its event files."""

import json
import math
import os
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..models.storage import write_atomically
from ..read_values import load_json
from .metrics import EpochMetrics

METRICS = "metrics.jsonl"
EPOCH_METRICS = {field.name for field in fields(EpochMetrics)}
ALWAYS_THERE = {"epoch", "test_error", "seconds"}  # and never null


class RunLog:
    """One line an epoch. A resumed run drops the lines its checkpoint does not know of and goes on behind the rest.

    So it does with what a machine that lost its power has left of a line.
    """

    def __init__(self, folder: Path, epochs_done: int = 0) -> None:
        self.folder, self.path, self.epochs_done = folder, folder / METRICS, epochs_done
        content = self.path.read_bytes() if self.path.exists() else b""
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
        return SummaryWriter(str(self.folder / "tensorboard"), purge_step=purge)

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
        json.loads(line)
    except ValueError:
        return False
    return True


def _is_odd(value: Any) -> bool:
    """NaN and infinity, which JSON does not know."""
    return isinstance(value, float) and not math.isfinite(value)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Of every epoch; None for what was no number."""
    path = folder / METRICS
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
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
