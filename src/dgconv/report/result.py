"""What came out of a run, beside what the paper reports for it."""

from dataclasses import dataclass
from typing import Any

from ..analysis.plan import Agreement, NetworkCost, agreement_with, count_cost
from ..analysis.trained_run import TrainedRun
from ..cost import CONVENTIONS, needs_images
from ..cost.macs import Convention, MacCount, count_macs
from ..data import DataFacts
from ..errors import UserError
from ..pruning import what_is_left
from ..train.recipe_files import Reported, reported_for
from .missing import Missing, attempt


@dataclass(frozen=True)
class Outcome:
    """Errors are in percent. None stands for what is not known."""

    model: str
    task: str | None
    error: float | None  # on the test images, after the last epoch
    pruned_share: float | None  # measured on the test images
    cost: NetworkCost | None
    reported: Reported | None
    agreement: Agreement | None  # of our MACs with the reported ones
    epochs: int | None
    seconds: float | None  # of training, all epochs together

    @property
    def error_difference(self) -> float | None:
        """Our error less the paper's, in points; below zero is better than the paper."""
        if self.error is None or self.reported is None or self.reported.error is None:
            return None
        return self.error - self.reported.error


def result_of(run: TrainedRun, epochs: list[dict[str, Any]], missing: list[Missing]) -> Outcome:
    """``epochs``: the lines of its metrics."""
    recipe = attempt("what the paper reports", lambda: run.recipe, missing)
    reported = reported_for(recipe) if recipe else None
    cost = attempt("MACs", lambda: _cost_of(run, missing), missing)
    return Outcome(
        model=run.config["model"]["name"],
        task=run.task if recipe else None,
        error=attempt("test error", lambda: run.error, missing),
        pruned_share=epochs[-1].get("pruned_share") if epochs else None,
        cost=cost,
        reported=reported,
        agreement=agreement_with(cost, reported) if cost else None,
        epochs=len(epochs) or None,
        seconds=sum(line["seconds"] for line in epochs) if epochs else None,
    )


def _cost_of(run: TrainedRun, missing: list[Missing]) -> NetworkCost:
    model = run.model if run.has_weights else run.untrained_model.eval()
    counts = {convention: count_network(run, convention) for convention in CONVENTIONS}
    if needs_images(model) and not all(count.measured for count in counts.values()):
        reason = "its weights or its data set are not there; what is shown follows from the options"
        missing.append(Missing("MACs measured on test images", reason))
    dense = {convention: count.dense_macs for convention, count in counts.items()}
    if "recipe" in run.config:
        dense = count_cost(run.recipe, DataFacts(0, run.num_classes, run.input_size[-1]), model).dense_macs
    parameters = sum(parameter.numel() for parameter in what_is_left(model).parameters())
    return NetworkCost(parameters, {convention: count.macs for convention, count in counts.items()}, dense)


def count_network(run: TrainedRun, convention: Convention) -> MacCount:
    """The cost: measured where it depends on images, if weights and data are there; else what the options tell."""
    try:
        return run.macs(convention)
    except UserError:
        return count_macs(run.untrained_model.eval(), run.input_size, convention)
