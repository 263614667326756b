"""Network slimming (NS), Liu et al. 2017: sparsity on the batch norms' scales, and one threshold for the network."""

from typing import Any

import torch
from torch import Tensor, nn

from ..layers.method import Method, register_method
from ..values import FACTOR
from .base import SMALLER, Choice, FilterPruning, best_of, units_left
from .channels import ChannelSet


class NetworkSlimming(FilterPruning):
    r"""Adds :math:`\lambda \sum |\gamma|` over all batch norms to the loss, then prunes the channels of least
    :math:`|\gamma|` of the whole network.

    The first half of training is with the penalty, the second without it and with what is left. The rate is that of
    all channels together; a layer keeps at least one. A channel with several batch norms, as behind a depthwise
    convolution, has their mean :math:`|\gamma|`. A batch norm that stands before its convolution and reads channels of
    several layers, as in a DenseNet or a pre-activation ResNet, selects among them for this convolution alone.

    The authors train what is left from the beginning of the learning rate's schedule; here there is one schedule for
    all.

    Args:
        model, rate, budget, input_size: see :class:`FilterPruning`.
        sparsity_weight: weight lambda of the penalty; the authors have 1e-4 for VGG, 1e-5 for ResNet and DenseNet.
    """

    shared = "inputs"
    default_rate = 0.4
    final_from = 1 / 2

    def __init__(
        self,
        model: nn.Module,
        *amount: Any,
        sparsity_weight: float = 1e-5,
        **named_amount: Any,
    ) -> None:
        NS.check(sparsity_weight=sparsity_weight)
        super().__init__(model, *amount, **named_amount)
        self.register_buffer("sparsity", torch.tensor(float(sparsity_weight)))  # a captured graph reads it there

    def penalty(self, model: nn.Module) -> Tensor:
        scales: list[Tensor] = [norm.weight for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)]
        return self.get_buffer("sparsity") * torch.cat(scales).abs().sum()

    def choose(self, model: nn.Module, rate: float) -> Choice:
        """One threshold for all sets: the ``rate`` quantile of all scores."""
        scores = [_mean_scale(model, channel_set) for channel_set in self.sets]
        together = torch.cat(scores)
        kept = best_of(together, units_left(len(together), rate)).split([len(score) for score in scores])
        return [keep if keep.any() else best_of(score, 1) for keep, score in zip(kept, scores, strict=True)]

    def as_many_as_chosen(self, model: nn.Module, rate: float) -> Choice:
        return self.choose(model, rate)  # how many of a layer depends on which

    def prune(self, model: nn.Module) -> None:
        super().prune(model)
        self.get_buffer("sparsity").zero_()


def _mean_scale(model: nn.Module, channel_set: ChannelSet) -> Tensor:
    """The mean scale of each unit, over its channels and batch norms."""
    norms = channel_set.having("norm")
    if not norms:  # nothing says what its channels are worth: they stay
        return torch.full((channel_set.units,), float("inf"))
    scales = [norm.of(model).weight.detach().float().abs().cpu()[norm.channels].mean(1) for norm in norms]
    return torch.stack(scales).mean(0)


NS = register_method(Method("ns", "NS", NetworkSlimming, {"sparsity_weight": FACTOR}, SMALLER, prunes=True))
