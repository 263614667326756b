"""The state of a run: taken at any moment, written for good, and put back to go on exactly."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..data import Data, Inputs
from ..errors import UserError
from ..layers.controller import Controllers
from ..models import ImageClassifier
from ..models.storage import copy_to_cpu, load_model, put_weights, refuse_misfits
from ..runs import RunFolder
from ..runs.checkpoint import Checkpoint, Position, save_checkpoint
from ..values import MOST_COUNT
from .classes import refuse_other_classes
from .distributed import rank, sum_over_ranks
from .optimizer import momenta
from .recipe import Recipe


class RunUnderWay(Protocol):
    """What of a run makes up its state."""

    recipe: Recipe
    folder: Path
    data: Data
    device: torch.device
    model: ImageClassifier
    optimizer: torch.optim.SGD
    controllers: Controllers
    position: Position
    steps_per_epoch: int
    sums: Tensor
    environment: dict[str, Any]


def take_checkpoint(run: RunUnderWay) -> Checkpoint | None:
    """Takes the state of this moment. Every rank takes part; None on all of them but the first."""
    loss_sum, wrong, skipped = sum_over_ranks(run.sums.clone()).tolist()
    controllers = run.controllers.state()
    if rank() != 0:
        return None
    sums = {"loss_sum": loss_sum, "wrong": int(wrong), "skipped": int(skipped)}
    position = Position(**{**asdict(run.position), **sums})
    parts: dict[str, dict[str, Tensor]] = {
        "model": run.model.state_dict(),
        "momentum": momenta(run.model, run.optimizer),
        "random": random_states(run.device),
        "controllers": controllers,
    }
    tensors = {f"{part}.{name}": copy_to_cpu(tensor) for part, named in parts.items() for name, tensor in named.items()}
    return Checkpoint(position, run.recipe.to_dict(), tensors, run.data.classes)


def write_epoch(run: RunUnderWay, checkpoint: Checkpoint, is_best: bool) -> None:
    """The weights for use, and last the checkpoint that says that they are there."""
    extra = {
        "recipe": run.recipe.to_dict(),
        "input_size": run.data.input_size,
        "classes": run.data.classes,
        "images": Inputs.of(run.data).of_images,
        "epochs_done": checkpoint.position.epoch,
        "environment": run.environment,
    }
    folder = RunFolder(run.folder)
    folder.write_weights(checkpoint.part("model"))
    folder.write_config(run.model.config, **extra)
    if is_best:
        folder.write_best(checkpoint.part("model"))
    save_checkpoint(run.folder, checkpoint)


def put_back_lost_files(run: RunUnderWay) -> None:
    """Writes lost files of a run that is done: all that a network is used with is in its checkpoint, too."""
    checkpoint = take_checkpoint(run)
    if checkpoint:
        try:
            load_model(run.folder)
        except UserError:
            write_epoch(run, checkpoint, is_best=False)


def refuse_other_recipe(checkpoint: Checkpoint, recipe: Recipe, folder: Path) -> None:
    if differences := Recipe.from_dict(checkpoint.recipe, str(folder)).refused_on_resume(recipe):
        raise UserError(f"the checkpoint in {folder} is from another recipe: {'; '.join(differences)}")


def restore(run: RunUnderWay, checkpoint: Checkpoint) -> None:
    """Every rank takes its share. A ``UserError`` where something in the checkpoint does not belong to the run."""
    refuse_other_recipe(checkpoint, run.recipe, run.folder)
    refuse_other_classes(checkpoint.classes, run.data, run.folder)
    file, parts = RunFolder(run.folder).checkpoint_file, momenta(run.model, run.optimizer)
    refuse_misfits(parts, checkpoint.part("momentum"), file)
    put_weights(run.model, checkpoint.part("model"), file)
    with torch.no_grad():
        for name, momentum in parts.items():
            momentum.copy_(checkpoint.part("momentum")[name])
    try:
        _check_position(checkpoint.position, run)
        restore_random_states(checkpoint.part("random"), run.device)
        run.controllers.load_state(checkpoint.part("controllers"))
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{file} is damaged or not a checkpoint of dgconv: {error}") from None
    run.position = checkpoint.position
    if rank() == 0:  # the sums are those of all ranks together
        sums = [run.position.loss_sum, run.position.wrong, run.position.skipped]
        run.sums.copy_(torch.tensor(sums, dtype=torch.float64))


def _check_position(position: Position, run: RunUnderWay) -> None:
    counts_fit = (
        0 <= position.epoch <= run.recipe.training.epochs
        and 0 <= position.step <= run.steps_per_epoch
        and position.step <= position.seen <= MOST_COUNT
        and 0 <= position.wrong <= position.seen
        and 0 <= position.skipped <= MOST_COUNT
    )
    if not counts_fit or not 0 <= position.seconds <= MOST_COUNT:
        raise ValueError(f"its position is none of this run: {position}")


def random_states(device: torch.device) -> dict[str, Tensor]:
    """States of the generators that dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
