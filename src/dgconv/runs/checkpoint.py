"""Everything a run needs to go on exactly where it stopped, in one file that is there whole or not at all."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import UserError
from ..files import write_atomically
from ..values import load_json, read_values
from .names import CHECKPOINT
from .tensors import read_tensors, to_bytes

TEXTS = ("position", "recipe", "classes")  # what is written as JSON


@dataclass
class Position:
    """Where a run is, and what the epoch under way has added up so far."""

    epoch: int = 0  # whole epochs done
    step: int = 0  # steps done in the next one
    seen: int = 0
    loss_sum: float = 0.0
    wrong: int = 0
    skipped: int = 0
    seconds: float = 0.0
    best_error: float | None = None


@dataclass
class Checkpoint:
    """``tensors`` by name: ``model.*``, ``momentum.*``, ``random.*``, ``controllers.*``, copies on the CPU."""

    position: Position
    recipe: dict[str, Any]  # checked when a Recipe is made of it
    tensors: dict[str, Tensor] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)  # of the data set; older ones do not say

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) + 1 :]: t for name, t in self.tensors.items() if name.startswith(prefix + ".")}


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint; on a full disk the old one stays."""
    parts = (asdict(checkpoint.position), checkpoint.recipe, checkpoint.classes)
    text = {name: json.dumps(part) for name, part in zip(TEXTS, parts, strict=True)}
    write_atomically(folder / CHECKPOINT, to_bytes(checkpoint.tensors, text))


def load_checkpoint(folder: Path) -> Checkpoint:
    path = folder / CHECKPOINT
    if not path.is_file():
        raise UserError(f"{folder} has no {CHECKPOINT} to resume from")
    try:
        tensors, text = read_tensors(path, known=TEXTS)
        return Checkpoint(
            read_values(Position, load_json(text["position"]), "its position"),
            _table(load_json(text["recipe"])),
            tensors,
            list(map(str, load_json(text.get("classes", "[]")))),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged or not a checkpoint of dgconv: {error}") from None


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"its recipe is a {type(value).__name__}")
    return value
