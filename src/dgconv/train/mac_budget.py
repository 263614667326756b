"""The controller of a MAC budget, for methods whose cost comes out of training instead of an option."""

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..cost.macs import count_macs
from ..errors import UserError
from ..layers.controller import Controller
from ..layers.method import MethodLayer, layer_methods
from ..values import SHARE
from .distributed import rank
from .schedule import RAMP_END, pruning_ramp

log = logging.getLogger(__name__)  # without a handler of the user's, warnings go to standard error

HALVINGS = 10  # of the interval in which the offset is searched
WIDEST = 8.0  # how far from 0: what it is added to is of the order of 1


class MacBudget(Controller):
    """Keeps the MACs of a network, measured on images, at a share of the dense network's.

    By one offset for the whole network, which its layers add to their thresholds or take from what they gate: the
    larger, the less is computed. What the layers learn relative to each other stays theirs.

    The first epoch is as open as the layers start. From then on the MACs follow the schedule of the pruning rate, which
    begins with all of them: closed from the beginning, these methods learn far slower.

    A budget that no offset can keep is told in a warning, once.
    """

    def __init__(
        self,
        model: nn.Module,
        budget: float,
        ramp_end: float = RAMP_END,
        images: Callable[[], Tensor] | None = None,
    ) -> None:
        SHARE.check("mac_budget", budget)
        self.model, self.budget, self.ramp_end, self.images = model, budget, ramp_end, images
        layers = [layer for layer in model.modules() if isinstance(layer, MethodLayer)]
        self.moved = [layer for layer in layers if getattr(layer, "offset", None) is not None]
        self.is_told = False  # that the budget is out of reach
        if not self.moved:
            names = " and ".join(f"_{name}" for name, method in layer_methods().items() if method.cost_is_trained)
            raise UserError(
                f"`mac_budget` is for methods whose cost comes out of training: {names} models. "
                "Others have an option that says what they cost"
            )

    @property
    def offsets(self) -> list[Tensor]:
        return [layer.offset for layer in self.moved if layer.offset is not None]

    def end_epoch(self, progress: float) -> float | None:
        return None if self.images is None else self.update(self.images(), progress)

    def update(self, images: Tensor, progress: float = 1.0) -> float:
        """The new offset, with which these images take what the schedule allows by now."""
        share = 1 - (1 - self.budget) * pruning_ramp(progress, self.ramp_end)
        low, high = -1.0, 1.0
        while self.share_at(high, images) > share and high < WIDEST:
            high *= 2
        while self.share_at(low, images) < share and -low < WIDEST:
            low *= 2
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.share_at(middle, images) > share else (low, middle)
        reached = self.share_at(high, images)  # and sets it
        if reached > share:
            problem = f"by the end of this epoch it comes down to {reached:.3g} only, its gates stay open"
            self._tell(problem, self.moved[0].budget_advice[1])
        return high

    def look_ahead(self, input_size: tuple[int, ...]) -> None:
        """Tells before the training if the budget cannot be kept with every gate closed."""
        before = [offset.clone() for offset in self.offsets]
        least = self.share_at(math.inf, torch.zeros(1, *input_size, device=self.offsets[0].device))
        for place, offset in zip(self.offsets, before, strict=True):
            place.copy_(offset)
        if least > self.budget:
            self._tell(f"even with every gate closed it takes {least:.3g}", self.moved[0].budget_advice[0])

    def _tell(self, problem: str, advice: str) -> None:
        if not self.is_told and rank() == 0:
            log.warning(
                "`mac_budget` %g of the dense network's MACs is out of this network's reach: %s. "
                "It is trained as near to it as it gets. Give a greater `mac_budget`, or %s",
                self.budget,
                problem,
                advice,
            )
        self.is_told = True

    def share_at(self, offset: float, images: Tensor) -> float:
        """The share of the dense network's MACs at an offset, which stays set."""
        self._set(offset)
        count = count_macs(self.model, images=images)
        return count.macs / count.dense_macs

    def _set(self, offset: float) -> None:
        for place in self.offsets:
            place.fill_(offset)
