"""Gates: which channels each head keeps. The tie rule and the keep-count rule live here and nowhere else."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import UserError

KeepRule = Literal["ceil", "round"]
TieRule = Literal["lowest_index", "drop"]
Observer = Callable[[Tensor, Tensor], None]


def check_pruning_rate(rate: float) -> float:
    if not isinstance(rate, Real) or not 0 <= rate < 1:
        raise UserError(f"pruning_rate must be in [0, 1), got {rate!r}")
    return rate


def keep_count(channels: int, pruning_rate: float, rule: KeepRule = "ceil") -> int:
    """How many of C channels a head keeps at pruning rate xi; never less than one.

    ``ceil``: ``ceil((1 - xi) C)``, the paper. ``round``: ``C - round(xi C)``, the authors' code.
    """
    check_pruning_rate(pruning_rate)
    if rule == "ceil":
        keep = math.ceil(round((1 - pruning_rate) * channels, 6))  # (1 - 1 / 3) * 9 is 6.000000000000001
    elif rule == "round":
        keep = channels - round(pruning_rate * channels)
    else:
        raise UserError(f"keep_rule must be 'ceil' or 'round', got {rule!r}")
    return max(1, keep)


class Gate(nn.Module):
    """What both gates share.

    ``observer``, if set, is called with every saliency ``[B, H, C]`` and the mask ``[B, H, C]`` of the channels kept:
    to count or record them.
    """

    observer: Observer | None = None

    def mask(self, saliency: Tensor) -> Tensor:
        """True where a channel is kept, ``[B, H, C]``."""
        raise NotImplementedError

    def forward(self, saliency: Tensor) -> Tensor:
        mask = self.mask(saliency)
        self.observe(saliency, mask)
        return saliency.where(mask, 0)

    def observe(self, saliency: Tensor, mask: Tensor) -> None:
        if self.observer is not None:
            self.observer(saliency, mask)

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """For a while one more observer, after the one there was."""
        before = self.observer

        def both(saliency: Tensor, mask: Tensor) -> None:
            if before is not None:
                before(saliency, mask)
            observer(saliency, mask)

        self.observer = both
        try:
            yield
        finally:
            self.observer = before


class HeadGate(Gate):
    """Each head keeps its ``keep`` channels of greatest saliency (the paper's equation 6).

    By value; the lowest index wins a tie; a NaN ranks last. With ``tie_rule="drop"``, as in the authors' code,
    a channel passes only if its saliency is above the largest one left out, so ties at the border all go.

    ``keep`` is a buffer: a schedule moves it without a new graph, and a checkpoint carries it.

    Shape: ``[B, H, C]`` to ``[B, H, C]``, zero where a channel is left out.
    """

    keep: Tensor

    def __init__(
        self,
        channels: int,
        pruning_rate: float,
        *,
        keep_rule: KeepRule = "ceil",
        tie_rule: TieRule = "lowest_index",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if tie_rule not in ("lowest_index", "drop"):
            raise UserError(f"tie_rule must be 'lowest_index' or 'drop', got {tie_rule!r}")
        self.channels, self.keep_rule, self.tie_rule = channels, keep_rule, tie_rule
        self.register_buffer("keep", torch.tensor(keep_count(channels, pruning_rate, keep_rule), device=device))

    def set_rate(self, pruning_rate: float) -> None:
        """Prune this share of the channels from now on."""
        self.keep.fill_(self.count_at(pruning_rate))

    def count_at(self, pruning_rate: float) -> int:
        """How many channels a head keeps at this rate."""
        return keep_count(self.channels, pruning_rate, self.keep_rule)

    def mask(self, saliency: Tensor) -> Tensor:
        score = saliency.detach()
        score = torch.where(score.isnan(), -torch.inf, score)
        passes = ranks(score) < self.keep
        if self.tie_rule == "drop":
            border = score.where(~passes, -torch.inf).amax(-1, keepdim=True)
            return (score > border) | (self.keep == self.channels)
        return passes

    def extra_repr(self) -> str:
        kept = "?" if self.keep.is_meta else int(self.keep)
        return f"keep={kept} of {self.channels}"


def ranks(score: Tensor) -> Tensor:
    """Of each entry along the last dimension: 0 for the greatest; of equal ones the lowest index comes first."""
    channels = torch.arange(score.shape[-1], device=score.device)
    if torch.compiler.is_dynamo_compiling():  # torch.compile would take minutes for the GPU's kernel of a sort
        own, other = score[..., :, None], score[..., None, :]
        return ((other > own) | ((other == own) & (channels < channels[:, None]))).sum(-1)
    order = score.argsort(dim=-1, descending=True, stable=True)
    return torch.empty_like(order).scatter(-1, order, channels.expand_as(order))


class GlobalGate(Gate):
    """Keeps the channels whose ``abs(saliency)`` reaches one threshold, the same for the whole network (DGC-G).

    The saliency is signed. ``threshold`` is a buffer that the trainer sets from the xi-quantile of all
    saliencies (:class:`dgconv.train.GlobalThreshold`); until then it is 0 and nothing is pruned. A NaN never
    passes.

    Shape: ``[B, H, C]`` to ``[B, H, C]``, zero where a channel is left out.
    """

    threshold: Tensor

    def __init__(self, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.register_buffer("threshold", torch.zeros((), device=device))

    def mask(self, saliency: Tensor) -> Tensor:
        return saliency.detach().abs() >= self.threshold

    def extra_repr(self) -> str:
        return "threshold=?" if self.threshold.is_meta else f"threshold={float(self.threshold):.4g}"
