"""Pruning filters for efficient ConvNets, Li et al. 2017: least sum of absolute weights, once."""

from torch import Tensor

from .base import FilterPruning


class L1Pruning(FilterPruning):
    r"""Rates filter j of a layer by :math:`s_j = \sum_i \lVert F_{i,j} \rVert_1`, and prunes the least once.

    A third of the training is for the dense network; the rest trains what is left. (The paper starts from a trained
    network, and chooses the share of each layer by how sensitive it is; here all layers have the same.)
    """

    final_from = 1 / 3

    def scores(self, filters: Tensor) -> Tensor:
        return filters.abs().sum(1)
