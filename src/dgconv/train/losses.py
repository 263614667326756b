"""What a dynamic network adds to the classification loss. Saliencies are ``[B, H, C]``, one tensor a layer."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..layers.select import dynamic_layers

LassoReading = Literal["authors", "paper"]


def take_saliencies(model: nn.Module) -> list[Tensor]:
    """The saliencies of the last forward pass in training mode, taken out of the layers.

    Taken, not read: a tensor that stays on a module keeps the whole graph of its step alive.
    """
    saliencies = []
    for _, layer in dynamic_layers(model):
        if layer.saliency is not None:
            saliencies.append(layer.saliency)
            layer.saliency = None
    return saliencies


def lasso_loss(saliencies: Sequence[Tensor], reading: LassoReading = "authors") -> Tensor:
    r"""Pushes saliencies to zero (the paper's equation 8), to be weighted by lambda = 1e-5.

    ``paper``: :math:`\frac{1}{LH} \sum_l \sum_i \lVert g^{l,i} \rVert_1`, a mean over layers and heads of a sum over
    channels. ``authors``: their code has it the other way round, a sum over layers and heads of the mean over
    channels. Both are means over the batch.
    """
    if reading == "paper":
        return torch.stack([g.abs().sum(-1).mean() for g in saliencies]).mean()
    if reading == "authors":
        return torch.stack([g.abs().mean() * g.shape[1] for g in saliencies]).sum()
    raise UserError(f"the lasso is read as 'authors' or 'paper', got {reading!r}")


def angle_loss(saliencies: Sequence[Tensor]) -> Tensor:
    r"""Turns the heads of a layer away from each other (appendix), to be weighted by lambda = 1e-4.

    .. math:: \frac{2}{LH(H-1)} \sum_l \sum_{i<j} \left| \cos(g^{l,i}, g^{l,j}) \right|

    A mean over the batch. Layers with one head have no pairs and count as zero.
    """
    return torch.stack([_mean_abs_cosine(g) for g in saliencies]).mean()


def _mean_abs_cosine(saliency: Tensor) -> Tensor:
    heads = saliency.shape[1]
    if heads == 1:
        return saliency.sum() * 0
    directions = F.normalize(saliency, dim=-1)
    cosines = (directions @ directions.mT).abs()  # [B, H, H]
    return cosines.triu(diagonal=1).sum((1, 2)).mean() * 2 / (heads * (heads - 1))
