"""Filter pruning via geometric median (FPGM), He et al. 2019: the filters that others can best stand in for."""

import torch
from torch import Tensor, nn

from ..layers.method import Method, register_method
from .base import SMALLER, FilterPruning


class GeometricMedianPruning(FilterPruning):
    r"""Prunes the filters of least :math:`\sum_i \lVert F_j - F_i \rVert_2`, the nearest to all others of the layer.

    After the first epoch, and they do not come back. The authors choose again after each epoch, but mask the gradients
    of what they chose; filters at zero then stay the nearest to the others, and the choice stays what it was.
    """

    shared = "outputs"

    def scores(self, filters: Tensor) -> Tensor:
        # not by a matrix product, which loses the small distances
        return torch.cdist(filters, filters, compute_mode="donot_use_mm_for_euclid_dist").sum(1)

    def end_epoch(self, model: nn.Module, progress: float) -> None:
        if not self.is_final:
            self.prune(model)


FPGM = register_method(Method("fpgm", "FPGM", GeometricMedianPruning, {}, SMALLER, prunes=True))
