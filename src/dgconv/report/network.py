"""The network of a run in the form in which it runs, and what that costs."""

from torch import nn

from ..analysis.macs import Convention, MacCount, count_macs
from ..analysis.run_folder import RunFolder
from ..errors import UserError
from ..pruning import cut, pruning_of


def as_it_runs(model: nn.Module) -> nn.Module:
    """Of filter pruning, what is left; everything else runs as it was trained."""
    return cut(model) if pruning_of(model) else model


def count_network(run: RunFolder, convention: Convention) -> MacCount:
    """Measured on images where it depends on them, if weights and data are there; else what the options tell."""
    if run.has_weights and pruning_of(run.model):
        return count_macs(as_it_runs(run.model), run.input_size, convention)
    try:
        return run.macs(convention)
    except UserError:
        return count_macs(run.untrained_model.eval(), run.input_size, convention)
