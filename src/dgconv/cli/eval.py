"""The command that evaluates a run."""

from pathlib import Path

from torch import nn
from tyro.conf import Positional

from ..analysis.rate import RANGE_IMAGES, calibration_images, can_set_rate, set_rate
from ..data.load import refuse_unused_folder
from ..deploy.precision import Precision, prepare_as
from ..errors import UserError
from ..models import load_model
from ..models.pretrained import find_run
from ..pruning import what_is_left
from ..train import FinishedRun, Recipe, evaluate
from ..train.classes import load_data_of_run
from ._device import find_device
from ._summary import show_results


def eval(
    run: Positional[Path],
    pruning_rate: float | None = None,
    precision: Precision = "float32",
    data_dir: str | None = None,
    skip_corrupt_images: bool = False,
    json: bool = False,
) -> None:
    """Evaluate a run on the test images of its data set: error, MACs and the measured pruning rate.

    Args:
        run: Run folder, or the name of published weights.
        pruning_rate: Prune at this rate instead of the trained one; batch norms are adapted on training images.
        precision: int8 evaluates it as 'dgconv export --precision int8' writes it, for the CPU.
        data_dir: Folder of the data set, if it is no longer where it was.
        skip_corrupt_images: Leave corrupt images out; a run that was trained so does it anyway.
        json: Print JSON instead of a table.
    """
    found = find_run(run)
    recipe = Recipe.of_run(found)
    if recipe is None:
        raise UserError(f"{run} was not trained here, so its data set is not known")
    refuse_unused_folder(data_dir, [recipe.data.name])
    recipe = recipe.changed(skip_corrupt_images=recipe.data.skip_corrupt_images or skip_corrupt_images)
    device = find_device() if precision == "float32" else "cpu"
    model, data = load_model(found, device), load_data_of_run(found, recipe, data_dir)
    if pruning_rate is not None:
        if not can_set_rate(model):
            name = model.config["name"]
            raise UserError(
                f"{name} has no gates that take a `pruning_rate`, as _dgc and _dgcg models have. Leave it out"
            )
        set_rate(model, pruning_rate, calibration_images(data.train, device))
    evaluated: nn.Module = model
    if precision != "float32":
        images = calibration_images(data.train, count=RANGE_IMAGES)
        evaluated = prepare_as(what_is_left(model), precision, images)
    evaluation = evaluate(evaluated, data.test, device=device)
    show_results([FinishedRun(model, data, evaluation, found.path)], device, json, precision)
