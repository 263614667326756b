"""The state of a run: taken at any moment, written for good, and put back to go on exactly."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import UserError
from ..models.storage import WEIGHTS, copy_to_cpu, load_model, put_weights, save_config, save_weights
from .checkpoint import (
    CHECKPOINT,
    Checkpoint,
    Position,
    random_states,
    recipe_differences,
    restore_random_states,
    save_checkpoint,
)  # fmt: skip
from .classes import refuse_other_classes
from .distributed import gather_over_ranks, rank, sum_over_ranks, world_size
from .optimizer import momenta
from .recipe import Recipe

if TYPE_CHECKING:
    from .run import Run

BEST = "best.safetensors"


def take_checkpoint(run: "Run") -> Checkpoint | None:
    """Of this moment. Every rank takes part; None on all of them but the first."""
    loss_sum, wrong, skipped = sum_over_ranks(run.sums.clone()).tolist()
    library = [gather_over_ranks(values) for values in run.threshold.library]
    if rank() != 0:
        return None
    sums = {"loss_sum": loss_sum, "wrong": int(wrong), "skipped": int(skipped)}
    position = Position(**{**asdict(run.position), **sums})
    parts: dict[str, dict[str, Tensor]] = {
        "model": run.model.state_dict(),
        "momentum": momenta(run.model, run.optimizer),
        "random": random_states(run.device),
        "library": {str(index): values for index, values in enumerate(library)},
    }
    tensors = {f"{part}.{name}": copy_to_cpu(tensor) for part, named in parts.items() for name, tensor in named.items()}
    return Checkpoint(position, run.recipe.to_dict(), tensors, run.data.classes)


def write_epoch(run: "Run", checkpoint: Checkpoint, is_best: bool) -> None:
    """The weights for use, and last the checkpoint that says that they are there."""
    extra = {
        "recipe": run.recipe.to_dict(),
        "input_size": run.data.input_size,
        "classes": run.data.classes,
        "epochs_done": checkpoint.position.epoch,
        "environment": run.environment,
    }
    save_weights(run.folder / WEIGHTS, checkpoint.part("model"))
    save_config(run.folder, run.model.config, **extra)
    if is_best:
        save_weights(run.folder / BEST, checkpoint.part("model"))
    save_checkpoint(run.folder, checkpoint)


def put_back_lost_files(run: "Run") -> None:
    """Of a run that is done: all that a network is used with is in its checkpoint, too."""
    checkpoint = take_checkpoint(run)
    if checkpoint:
        try:
            load_model(run.folder)
        except UserError:
            write_epoch(run, checkpoint, is_best=False)


def refuse_other_recipe(checkpoint: Checkpoint, recipe: Recipe, folder: Path) -> None:
    differences = recipe_differences(checkpoint.recipe, recipe.to_dict())
    if differences:
        raise UserError(f"the checkpoint in {folder} is from another recipe: {'; '.join(differences)}")


def restore(run: "Run", checkpoint: Checkpoint) -> None:
    """Every rank takes its share."""
    refuse_other_recipe(checkpoint, run.recipe, run.folder)
    refuse_other_classes(checkpoint.classes, run.data, run.folder)
    put_weights(run.model, checkpoint.part("model"), run.folder / CHECKPOINT)
    with torch.no_grad():
        for name, momentum in momenta(run.model, run.optimizer).items():
            momentum.copy_(checkpoint.part("momentum")[name])
    restore_random_states(checkpoint.part("random"), run.device)
    run.position = checkpoint.position
    if rank() == 0:  # the sums are those of all ranks together
        sums = [run.position.loss_sum, run.position.wrong, run.position.skipped]
        run.sums.copy_(torch.tensor(sums, dtype=torch.float64))
    library = checkpoint.part("library")  # and so are these
    run.threshold.library = [library[key][rank() :: world_size()].to(run.device) for key in sorted(library, key=int)]
