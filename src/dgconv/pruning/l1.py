"""Pruning filters for efficient ConvNets, Li et al. 2017: least sum of absolute weights, once."""

from torch import Tensor

from ..layers.method import Method, register_method
from .base import SMALLER, FilterPruning


class L1Pruning(FilterPruning):
    r"""Rates filter j of a layer by :math:`s_j = \sum_i \lVert F_{i,j} \rVert_1`, and prunes the least once.

    A third of the training is for the dense network; the rest trains what is left. (The paper starts from a trained
    network, and chooses the share of each layer by how sensitive it is; here all layers have the same.)
    """

    final_from = 1 / 3

    def scores(self, filters: Tensor) -> Tensor:
        return filters.abs().sum(1)


L1 = register_method(Method("l1", "L1", L1Pruning, {}, SMALLER, prunes=True))
