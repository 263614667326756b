"""What the network of a run costs."""

from ..analysis.macs import Convention, MacCount, count_macs
from ..analysis.run_folder import RunFolder
from ..errors import UserError


def count_network(run: RunFolder, convention: Convention) -> MacCount:
    """Measured on images where it depends on them, if weights and data are there; else what the options tell."""
    try:
        return run.macs(convention)
    except UserError:
        return count_macs(run.untrained_model.eval(), run.input_size, convention)
