"""Soft filter pruning (SFP), He et al. 2018: filters that were pruned go on training, and may come back."""

import torch
from torch import Tensor, nn

from ..layers.method import Method, register_method
from .base import SMALLER, FilterPruning


class SoftFilterPruning(FilterPruning):
    r"""Sets, after each epoch, the filters of least :math:`\lVert F_j \rVert_2` to zero, and trains on with all.

    As in the authors' code the batch norm behind a filter is left as it is; it is what brings the filter back. (A
    channel with a zero filter, scale and shift has no gradients at all.) So a zero filter makes a constant channel.

    For the last quarter of training, which fine-tunes as in the schedule of dynamic group convolution, a last choice
    holds, with all of the channel zero: so nothing changes when it is cut. (The authors go on to the last epoch.)
    """

    shared = "outputs"
    final_from = 3 / 4

    def scores(self, filters: Tensor) -> Tensor:
        return filters.norm(dim=1)

    @torch.no_grad()
    def end_epoch(self, model: nn.Module, progress: float) -> None:
        if self.is_final:
            return
        for channel_set, kept in zip(self.sets, self.choose(model, self.rate), strict=True):
            for member in channel_set.having("filters", "norm"):
                layer = member.of(model)
                # with the filter goes the mean of what it made, so that evaluation sees what training sees
                zeroed = [layer.running_mean] if isinstance(layer, nn.BatchNorm2d) else [layer.weight, layer.bias]
                for values in zeroed:
                    if values is not None:
                        values[member.channels[~kept].flatten().to(values.device)] = 0


SFP = register_method(Method("sfp", "SFP", SoftFilterPruning, {}, SMALLER, prunes=True))
