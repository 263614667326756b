"""Everything a run needs to go on exactly where it stopped, in one file that is there whole or not at all."""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import UserError
from ..models.storage import CHECKPOINT, write_atomically
from ..read_values import read_values
from .recipe import Recipe


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
    """``tensors`` by name: ``model.*``, ``momentum.*``, ``random.*``, ``library.*``, copies on the CPU."""

    position: Position
    recipe: dict[str, Any]  # as ``Recipe.to_dict`` has it
    tensors: dict[str, Tensor] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)  # of the data set; older ones do not say

    def part(self, prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) + 1 :]: t for name, t in self.tensors.items() if name.startswith(prefix + ".")}


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """On a full disk the old checkpoint stays."""
    parts = {"position": asdict(checkpoint.position), "recipe": checkpoint.recipe, "classes": checkpoint.classes}
    text = {name: json.dumps(part) for name, part in parts.items()}
    write_atomically(folder / CHECKPOINT, save(checkpoint.tensors, metadata=text))


def disk_trouble(error: OSError, folders: Sequence[Path]) -> UserError:
    """What to say when a disk is full, or a file gone: what is kept of the runs, and how to go on."""
    where = os.fsdecode(error.filename) if error.filename else ", ".join(map(str, folders))
    kept = [str(folder) for folder in folders if (folder / CHECKPOINT).exists()]
    if kept:
        then = f"The last checkpoint is kept. Make room or mend that, then: dgconv train --resume {shlex.join(kept)}"
    else:
        then = "There is no checkpoint yet. Make room or mend that, remove the run folder and train again"
    return UserError(f"the training ended, {where}: {error.strerror}. {then}")


def load_checkpoint(folder: Path) -> Checkpoint:
    path = folder / CHECKPOINT
    if not path.is_file():
        raise UserError(f"{folder} has no {CHECKPOINT} to resume from")
    try:
        with safe_open(path, framework="pt") as file:
            text = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return Checkpoint(
            read_values(Position, json.loads(text["position"]), "its position"),
            Recipe.from_dict(json.loads(text["recipe"]), str(path)).to_dict(),
            tensors,
            list(map(str, json.loads(text.get("classes", "[]")))),
        )
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged or not a checkpoint of dgconv: {error}") from None


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Of the generators that dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def recipe_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What another recipe would change about a run; where its data lies is not part of it, nor how steps are compiled.

    Nor is what happens to corrupt images: a run that one of them stopped can go on without it.
    """
    free = {"data_dir", "workers", "skip_corrupt_images", "name", "checkpoint_minutes", "compile"}
    old, new = (  # one of one's own may have lists for tuples
        {key: list(value) if isinstance(value, tuple) else value for key, value in recipe.items()}
        for recipe in (old, new)
    )
    return [f"{key} was {old[key]!r}, is {new[key]!r}" for key in sorted(new.keys() - free) if old[key] != new[key]]
