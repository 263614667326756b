"""What a dynamic network adds to the classification loss. Saliencies are ``[B, H, C]``, one tensor a layer."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..layers._conv import full_precision
from ..layers.controller import Controller
from ..layers.select import dynamic_layers
from ..ops.transforms import transforming

LassoReading = Literal["authors", "paper"]
DEFAULT_ANGLE_WEIGHT = 1e-4  # with the global threshold; head-wise gates turn apart by themselves
SHORTEST = 1e-12  # the saliencies of a head that is dead have no direction; nothing is divided by 0


def take_saliencies(model: nn.Module) -> list[Tensor]:
    """The saliencies of the last forward pass in training mode, taken out of the layers.

    Taken, not read: a tensor that stays on a module keeps the whole graph of its step alive.

    A layer that runs several times in one pass gives those of its last run only; were all of them kept, memory would
    grow without end wherever nobody takes them. For the losses of a network that shares layers, collect them yourself
    with ``layer.register_forward_hook(lambda layer, *_: saliencies.append(layer.saliency))``.

    Those of layers inside ``torch.utils.checkpoint`` have gradients only with ``use_reentrant=False``: the other form
    runs the layers without.
    """
    saliencies = []
    for _, layer in dynamic_layers(model):
        if layer.saliency is not None:
            saliencies.append(layer.saliency)
            layer.saliency = None
    return saliencies


class SaliencyLosses(Controller):
    """Adds the lasso, the angle and the balance loss to that of a step, each with its weight."""

    def __init__(
        self,
        lasso_weight: float,
        lasso: LassoReading = "authors",
        angle_weight: float = 0.0,
        balance_weight: float = 0.0,
    ) -> None:
        self.lasso_weight, self.lasso = lasso_weight, lasso
        self.angle_weight, self.balance_weight = angle_weight, balance_weight

    def penalty(self, saliencies: Sequence[Tensor] = ()) -> Tensor | None:
        if not saliencies:
            return None
        parts = [self.lasso_weight * lasso_loss(saliencies, self.lasso)] if self.lasso_weight else []
        parts += [self.angle_weight * angle_loss(saliencies)] if self.angle_weight else []
        parts += [self.balance_weight * balance_loss(saliencies)] if self.balance_weight else []
        return sum(parts[1:], parts[0]) if parts else None


def balance_loss(saliencies: Sequence[Tensor]) -> Tensor:
    r"""How unevenly the channels of a head share the saliency of a batch: the squared coefficient of variation of their
    means over the images, :math:`\mathrm{var}_c / \mathrm{mean}_c^2`, a mean over layers and heads.

    Ours, not the paper's: mixtures of experts are kept by it from always choosing the same few (Shazeer et al. 2017).
    """
    _require_some(saliencies)
    spreads = []
    for saliency in saliencies:
        with full_precision(saliency):
            of_channel = saliency.float().mean(0)  # [H, C]
            spreads.append((of_channel.var(1, correction=0) / (of_channel.mean(1) ** 2 + SHORTEST)).mean())
    return torch.stack(spreads).mean()


def lasso_loss(saliencies: Sequence[Tensor], reading: LassoReading = "authors") -> Tensor:
    r"""Pushes saliencies to zero (the paper's equation 8), to be weighted by lambda = 1e-5.

    ``paper``: :math:`\frac{1}{LH} \sum_l \sum_i \lVert g^{l,i} \rVert_1`, a mean over layers and heads of a sum over
    channels. ``authors``: their code has it the other way round, a sum over layers and heads of the mean over
    channels. Both are means over the batch.
    """
    _require_some(saliencies)
    if reading == "paper":
        weights = [1 / (g.shape[0] * g.shape[1] * len(saliencies)) for g in saliencies]
    elif reading == "authors":
        weights = [1 / (g.shape[0] * g.shape[2]) for g in saliencies]
    else:
        raise UserError(f"the lasso is read as 'authors' or 'paper', got {reading!r}")
    if transforming():
        return torch.stack([weight * g.abs().sum() for weight, g in zip(weights, saliencies, strict=True)]).sum()
    return _WeightedL1.apply(weights, *saliencies)


class _WeightedL1(torch.autograd.Function):
    """``sum_l weights[l] * |saliencies[l]|_1`` in a handful of kernels for all layers together."""

    @staticmethod
    def forward(ctx, weights, *saliencies):  # type: ignore[no-untyped-def]
        ctx.weights = weights
        ctx.save_for_backward(*saliencies)
        norms = torch._foreach_norm(saliencies, 1)
        torch._foreach_mul_(norms, weights)
        return torch.stack(norms).sum()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        gradients = torch._foreach_sign(ctx.saved_tensors)
        torch._foreach_mul_(gradients, ctx.weights)
        torch._foreach_mul_(gradients, grad)
        return None, *gradients


def angle_loss(saliencies: Sequence[Tensor]) -> Tensor:
    r"""Turns the heads of a layer away from each other (appendix), to be weighted by lambda = 1e-4.

    .. math:: \frac{2}{LH(H-1)} \sum_l \sum_{i<j} \left| \cos(g^{l,i}, g^{l,j}) \right|

    A mean over the batch. Layers with one head have no pairs and count as zero.
    """
    _require_some(saliencies)
    by_size: dict[torch.Size, list[Tensor]] = {}  # of batch and heads
    for saliency in saliencies:
        by_size.setdefault(saliency.shape[:2], []).append(saliency)
    products = _products if transforming() else _Products.apply
    sums = [_abs_cosines(products(*same)) for same in by_size.values()]
    return torch.stack(sums).sum() / len(saliencies)


def _products(*saliencies: Tensor) -> Tensor:
    """The scalar products of the heads of each layer, ``[L, B, H, H]``: all that has to be done layer by layer."""
    with full_precision(saliencies[0]):  # lengths need float32, and so does the way back
        return torch.stack([g @ g.mT for g in saliencies])


class _Products(torch.autograd.Function):
    """:func:`_products` with one matrix product a layer on the way back."""

    @staticmethod
    def forward(ctx, *saliencies):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(*saliencies)
        return _products(*saliencies)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return tuple(of_layer @ g for of_layer, g in zip(grad + grad.mT, ctx.saved_tensors, strict=True))


def _abs_cosines(products: Tensor) -> Tensor:
    """The mean over images and pairs of heads, summed over layers."""
    heads = products.shape[-1]
    if heads == 1:
        return products.sum() * 0
    lengths = products.diagonal(dim1=-2, dim2=-1).clamp(min=SHORTEST**2).sqrt()
    cosines = products / (lengths[..., :, None] * lengths[..., None, :])
    return cosines.abs().triu(diagonal=1).sum((2, 3)).mean(1).sum() * 2 / (heads * (heads - 1))


def _require_some(saliencies: Sequence[Tensor]) -> None:
    if isinstance(saliencies, Tensor | nn.Module):
        raise UserError(f"expected the list that take_saliencies(model) returns, got a {type(saliencies).__name__}")
    if not saliencies:
        raise UserError(
            "there are no saliencies: only dynamic layers leave them, in training mode only, and take_saliencies takes "
            "them once for each forward pass. To freeze batch norms, set only those to eval()"
        )
