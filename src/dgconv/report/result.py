"""What came out of a run, beside what the paper reports for it."""

from dataclasses import dataclass
from typing import Any

from ..analysis.mac_rules import needs_images
from ..analysis.macs import CONVENTIONS
from ..analysis.plan import Agreement, Cost, DataFacts, compare, count_cost, reported_for
from ..analysis.run_folder import RunFolder
from ..pruning import what_is_left
from ..train.recipe import Reported
from .missing import Missing, attempt
from .network import count_network


@dataclass(frozen=True)
class Result:
    """Errors are in percent. None stands for what is not known."""

    model: str
    task: str | None
    error: float | None  # on the test images, after the last epoch
    pruned_share: float | None  # measured on the test images
    cost: Cost | None
    reported: Reported | None
    agreement: Agreement | None  # of our MACs with the reported ones
    epochs: int | None
    seconds: float | None  # of training, all epochs together

    @property
    def error_difference(self) -> float | None:
        """In points; below zero is better than the paper."""
        if self.error is None or self.reported is None or self.reported.error is None:
            return None
        return self.error - self.reported.error


def result_of(run: RunFolder, epochs: list[dict[str, Any]], missing: list[Missing]) -> Result:
    """``epochs``: the lines of its metrics."""
    recipe = attempt("what the paper reports", lambda: run.recipe, missing)
    reported = reported_for(recipe) if recipe else None
    cost = attempt("MACs", lambda: _cost_of(run, missing), missing)
    return Result(
        model=run.config["model"]["name"],
        task=run.task if recipe else None,
        error=attempt("test error", lambda: run.error, missing),
        pruned_share=epochs[-1].get("pruned_share") if epochs else None,
        cost=cost,
        reported=reported,
        agreement=compare(cost, reported) if cost else None,
        epochs=len(epochs) or None,
        seconds=sum(line["seconds"] for line in epochs) if epochs else None,
    )


def _cost_of(run: RunFolder, missing: list[Missing]) -> Cost:
    model = run.model if run.has_weights else run.untrained_model.eval()
    counts = {convention: count_network(run, convention) for convention in CONVENTIONS}
    if needs_images(model) and not all(count.measured for count in counts.values()):
        reason = "its weights or its data set are not there; what is shown follows from the options"
        missing.append(Missing("MACs measured on test images", reason))
    dense = {convention: count.dense_macs for convention, count in counts.items()}
    if "recipe" in run.config:
        dense = count_cost(run.recipe, DataFacts(0, run.num_classes, run.input_size[-1]), model).dense_macs
    parameters = sum(parameter.numel() for parameter in what_is_left(model).parameters())
    return Cost(parameters, {convention: count.macs for convention, count in counts.items()}, dense)
