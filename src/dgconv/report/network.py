"""What the network of a run costs."""

from ..analysis.trained_run import TrainedRun
from ..cost.macs import Convention, MacCount, count_macs
from ..errors import UserError


def count_network(run: TrainedRun, convention: Convention) -> MacCount:
    """The cost: measured where it depends on images, if weights and data are there; else what the options tell."""
    try:
        return run.macs(convention)
    except UserError:
        return count_macs(run.untrained_model.eval(), run.input_size, convention)
