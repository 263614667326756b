"""The controller of a MAC budget, for methods whose cost comes out of training instead of an option."""

from torch import Tensor, nn

from ..analysis.macs import count_macs
from ..errors import UserError
from ..layers import ChannelGatingConv2d, LowCostCollaborativeConv2d
from .schedule import RAMP_END, pruning_ramp

HALVINGS = 10  # of the interval in which the offset is searched
WIDEST = 8.0  # how far from 0: what it is added to is of the order of 1


class MacBudget:
    """Keeps the MACs of a CGNet or LCCN, measured on images, at a share of the dense network's.

    By one offset for the whole network, added to every threshold of CGNet, taken from every branch of LCCN: the larger,
    the less is computed. What the layers learn relative to each other stays theirs.

    Training starts with all MACs and follows the schedule of the pruning rate: closed from the beginning, these methods
    learn far slower.
    """

    def __init__(self, model: nn.Module, budget: float, ramp_end: float = RAMP_END) -> None:
        if not 0 < budget <= 1:
            raise UserError(f"mac_budget is a share of the dense network's MACs, above 0 and up to 1, got {budget}")
        self.model, self.budget, self.ramp_end = model, budget, ramp_end
        layers = [m for m in model.modules() if isinstance(m, ChannelGatingConv2d | LowCostCollaborativeConv2d)]
        self.offsets = [layer.offset for layer in layers if layer.offset is not None]
        if not self.offsets:
            raise UserError(
                "mac_budget is for methods whose cost comes out of training: _cgnet and _lccn models. "
                "Others have an option that says what they cost"
            )

    def update(self, images: Tensor, progress: float = 1.0) -> float:
        """At the end of an epoch: the new offset, with which these images take what the schedule allows by now."""
        share = 1 - (1 - self.budget) * pruning_ramp(progress, self.ramp_end)
        low, high = -1.0, 1.0
        while self.share_at(high, images) > share and high < WIDEST:
            high *= 2
        while self.share_at(low, images) < share and -low < WIDEST:
            low *= 2
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.share_at(middle, images) > share else (low, middle)
        self._set(high)
        return high

    def share_at(self, offset: float, images: Tensor) -> float:
        """Of the dense network's MACs; the offset stays set."""
        self._set(offset)
        count = count_macs(self.model, images=images)
        return count.macs / count.dense_macs

    def _set(self, offset: float) -> None:
        for place in self.offsets:
            place.fill_(offset)
