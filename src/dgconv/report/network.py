"""What the network of a run costs."""

from ..analysis.macs import Convention, MacCount, count_macs
from ..analysis.run_folder import RunFolder
from ..errors import UserError
from ..pruning import pruning_of, what_is_left


def count_network(run: RunFolder, convention: Convention) -> MacCount:
    """Measured on images where it depends on them, if weights and data are there; else what the options tell."""
    if run.has_weights and pruning_of(run.model):
        return count_macs(what_is_left(run.model), run.input_size, convention)
    try:
        return run.macs(convention)
    except UserError:
        return count_macs(run.untrained_model.eval(), run.input_size, convention)
