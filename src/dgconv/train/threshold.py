"""The controller of the global threshold (DGC-G), from the paper's appendix."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..cost.macs import count_macs
from ..layers.controller import Controller, Place
from ..layers.dynamic_group_conv import DynamicGroupConv2d
from ..layers.select import dynamic_layers
from .distributed import gather_over_ranks, rank, world_size
from .schedule import RAMP_END, pruning_ramp


class GlobalThreshold(Controller):
    """Sets one threshold T for all global gates of a model, so that the wanted share of saliencies falls below it.

    .. math:: \\xi = |\\{g : |g| < T\\}| / |G|

    G is the *library*: the saliencies of the last ``batches`` iterations of every ``every``-th epoch, over all layers,
    heads and, under ``torch.distributed``, all ranks. The last T found is the one used for inference.

    The paper leaves two things open. Here xi follows the pruning schedule, as the head-wise gates do, and T is 0
    until the first update. A run whose length is no multiple of ``every`` updates after its last epoch as well.

    With ``weights``, one for each layer's saliencies, xi is a share of their sum: of MACs, if they are those of
    :func:`macs_per_saliency`.

    ``momentum`` below 1 makes T a running mean of what the updates find, as those of a batch norm, which the paper
    names as another way; the first one counts whole.
    """

    def __init__(
        self,
        model: nn.Module,
        epochs: int,
        batches: int = 5,
        every: int = 3,
        weights: Sequence[float] | None = None,
        ramp_end: float = RAMP_END,
        momentum: float = 1.0,
    ) -> None:
        layers = [layer for _, layer in _with_shared_threshold(model)]
        self.thresholds = [t for layer in layers if (t := layer.gate.shared_threshold) is not None]
        self.target = layers[0].pruning_rate if layers else 0.0
        self.epochs, self.batches, self.every, self.weights = epochs, batches, every, weights
        self.ramp_end, self.momentum = ramp_end, momentum
        self.library: list[Tensor] = []

    def wants(self, place: Place) -> bool:
        """Whether the saliencies of this iteration belong to the library."""
        is_update_epoch = (place.epoch + 1) % self.every == 0 or place.epoch + 1 == self.epochs
        return bool(self.thresholds) and is_update_epoch and place.step >= place.steps - self.batches

    def after_step(self, saliencies: Sequence[Tensor], place: Place) -> None:
        if self.wants(place):
            self.add(saliencies)

    def add(self, saliencies: Sequence[Tensor]) -> None:
        """One iteration's saliencies, one ``[B, H, C]`` a layer."""
        values = [g.detach().abs().flatten() for g in saliencies]
        if self.weights is not None:  # beside each value
            pairs = zip(values, self.weights, strict=True)
            values = [torch.stack([g, torch.full_like(g, weight)], 1) for g, weight in pairs]
        self.library.append(torch.cat(values))

    def end_epoch(self, progress: float) -> float | None:
        """The new threshold if there is a library, which is emptied."""
        if not self.library:
            return None
        values = gather_over_ranks(torch.cat(self.library))
        self.library.clear()
        share = self.target * pruning_ramp(progress, self.ramp_end)
        threshold = quantile(values, share) if self.weights is None else weighted_quantile(values, share)
        before = self.thresholds[0]
        threshold = torch.where(before > 0, before.lerp(threshold.to(before), self.momentum), threshold)
        for place in self.thresholds:
            place.copy_(threshold)
        return float(threshold)

    def state(self) -> dict[str, Tensor]:
        return {str(index): gather_over_ranks(values) for index, values in enumerate(self.library)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """A ``ValueError`` where it is none that :meth:`state` gave."""
        dimensions = 1 if self.weights is None else 2
        for index, values in enumerate(library := [state[str(index)] for index in range(len(state))]):
            if not values.is_floating_point() or values.dim() != dimensions or values.shape[1:] not in ((), (2,)):
                raise ValueError(f"the saliencies {index} are {values.dtype} {list(values.shape)}")
        device = self.thresholds[0].device
        self.library = [values[rank() :: world_size()].to(device) for values in library]


def _with_shared_threshold(model: nn.Module) -> list[tuple[str, DynamicGroupConv2d]]:
    return [(name, layer) for name, layer in dynamic_layers(model) if layer.gate.shared_threshold is not None]


def quantile(values: Tensor, share: float) -> Tensor:
    """The value that ``round(share * n)`` of n values are below. (torch.quantile stops at 16 million values.)"""
    if share <= 0:
        return values.new_zeros(())
    below = min(round(share * values.numel()), values.numel() - 1)
    return values.kthvalue(below + 1).values


def weighted_quantile(pairs: Tensor, share: float) -> Tensor:
    """The value that ``share`` of all weight is below; ``pairs`` are of a value and its weight, [n, 2]."""
    if share <= 0:
        return pairs.new_zeros(())
    values, order = pairs[:, 0].sort()
    up_to = pairs[order, 1].double().cumsum(0)
    below = torch.searchsorted(up_to, share * up_to[-1], right=True)
    return values[below.clamp(max=len(values) - 1)]


def macs_per_saliency(model: nn.Module, input_size: tuple[int, ...] | None = None) -> list[float]:
    """For each layer with a global gate, the MACs that one image saves if one head leaves out one channel."""
    macs = {layer.name: layer.dense_macs for layer in count_macs(model, input_size).layers}
    return [macs[name] / (layer.heads * layer.in_channels) for name, layer in _with_shared_threshold(model)]
