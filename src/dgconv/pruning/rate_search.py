"""The pruning rate that leaves a given share of the MACs."""

import copy
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ..cost.macs import count_macs
from ..errors import UserError
from .channels import ChannelSet
from .cut import cut_channels, without_pruning

TOLERANCE = 0.05  # of the budget
HALVINGS = 12  # of the interval that the rate is in: finer than the channels of our networks


def search_rate(
    model: nn.Module,
    sets: Sequence[ChannelSet],
    choose: Callable[[float], Sequence[Tensor]],
    budget: float,
    input_size: tuple[int, ...] | None = None,
    tolerance: float = TOLERANCE,
) -> float:
    """The rate at which ``choose(rate)`` leaves nearest to ``budget`` of the network's MACs; refused if further off."""
    dense = without_pruning(model).to("meta")  # shapes are enough
    total = count_macs(dense, input_size).macs

    def share_at(rate: float) -> float:
        smaller = copy.deepcopy(dense)
        cut_channels(smaller, sets, choose(rate), input_size)
        return count_macs(smaller, input_size).macs / total

    low, high = 0.0, 1.0  # pruned too little, pruned too much
    shares = {rate: share_at(rate) for rate in (low, high)}
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        shares[middle] = share_at(middle)
        low, high = (low, middle) if shares[middle] <= budget else (middle, high)
    best = min(shares, key=lambda rate: abs(shares[rate] - budget))
    if abs(shares[best] - budget) > tolerance * budget:
        raise UserError(
            f"pruning cannot bring {type(model).__name__} to {budget:.3g} of its MACs: the nearest it gets is "
            f"{shares[best]:.3g}, and one channel a layer leaves {shares[1.0]:.3g}. "
            "Choose a larger budget or a wider network"
        )
    return best
