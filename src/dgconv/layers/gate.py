"""Gates: which channels each head keeps. The tie rule and the keep-count rule live here and nowhere else."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..ops.transforms import has_values
from ._state import CountingBuffers

KeepRule = Literal["ceil", "round"]
TieRule = Literal["lowest_index", "drop"]
Observer = Callable[[Tensor, Tensor], None]


def check_pruning_rate(rate: float, name: str = "pruning_rate") -> float:
    if not isinstance(rate, Real) or not 0 <= rate < 1:
        raise UserError(f"`{name}` must be in [0, 1), got {rate!r}")
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
    """What every gate can be asked. One of your own needs a :meth:`mask`; the rest tells what that is known of it.

    ``observer``, if set, is called with every saliency ``[B, H, C]`` and the mask ``[B, H, C]`` of the channels kept:
    to count or record them.
    """

    observer: Observer | None = None
    cost_depends_on_image = True
    """Whether images differ in how many channels they keep, and not only in which."""

    def mask(self, saliency: Tensor) -> Tensor:
        """True where a channel is kept, ``[B, H, C]``."""
        raise NotImplementedError

    def reset(self, pruning_rate: float) -> None:
        """Starts anew."""
        self.set_rate(pruning_rate)

    def set_rate(self, pruning_rate: float) -> None:
        """Prunes this share of the channels from now on, if that is for the gate to say."""

    def count_at(self, pruning_rate: float) -> int | None:
        """How many channels a head keeps at this rate; None where a rate does not decide that."""
        return None

    def prunes_at(self, pruning_rate: float) -> bool:
        """Whether it now does what it would at this rate, as far as the gate can tell."""
        return True

    def kept_share(self, pruning_rate: float) -> float:
        """Share of the channels that is kept now, as far as it is known without images; at this target rate."""
        return 1 - pruning_rate

    @property
    def shared_threshold(self) -> Tensor | None:
        """The buffer with the threshold of the whole network, if it is that which decides."""
        return None

    @property
    def takes_rates(self) -> bool:
        """Whether a network can be asked to prune at another rate."""
        return False

    def fused_limits(self) -> tuple[Tensor, Tensor | None] | None:
        """What the fused kernels compare with: a count, or a threshold twice. None: they cannot stand in for it."""
        return None

    def spec(self) -> dict[str, Any] | str:
        """How native code does the same, or why it cannot."""
        return f"its gate is a {type(self).__name__} with a forward of its own"

    def forward(self, saliency: Tensor) -> Tensor:
        mask = self.mask(saliency)
        self.observe(saliency, mask)
        return self.passed(saliency, mask)

    def passed(self, saliency: Tensor, mask: Tensor) -> Tensor:
        """What channels are scaled by."""
        return saliency.where(mask, 0)

    def observe(self, saliency: Tensor, mask: Tensor) -> None:
        if self.observer is not None:
            self.observer(saliency, mask)

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Has one more observer for a while, after the one there was."""
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


class HeadGate(Gate, CountingBuffers):
    """Each head keeps its ``keep`` channels of greatest saliency (the paper's equation 6).

    By value; the lowest index wins a tie; a NaN ranks last. With ``tie_rule="drop"``, as in the authors' code,
    a channel passes only if its saliency is above the largest one left out, so ties at the border all go.

    ``keep`` is a buffer: a schedule moves it without a new graph, and a checkpoint carries it.

    Training may look at more channels than the best: with ``score_noise``, scores are compared after noise of so many
    of their standard deviations was added; ``exploration`` is the share of the images whose channels are drawn at
    random. Without ``scales``, what is kept passes as it is, and saliencies learn as if it had been scaled.

    Shape: ``[B, H, C]`` to ``[B, H, C]``, zero where a channel is left out.
    """

    keep: Tensor
    cost_depends_on_image = False

    def __init__(
        self,
        channels: int,
        pruning_rate: float,
        *,
        keep_rule: KeepRule = "ceil",
        tie_rule: TieRule = "lowest_index",
        score_noise: float = 0.0,
        exploration: float = 0.0,
        scales: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if tie_rule not in ("lowest_index", "drop"):
            raise UserError(f"tie_rule must be 'lowest_index' or 'drop', got {tie_rule!r}")
        self.channels, self.keep_rule, self.tie_rule = channels, keep_rule, tie_rule
        self.score_noise, self.exploration, self.scales = score_noise, exploration, scales
        self.register_buffer("keep", torch.tensor(keep_count(channels, pruning_rate, keep_rule), device=device))

    def ranges(self) -> dict[str, tuple[int, int]]:
        return {"keep": (1, self.channels)}

    def set_rate(self, pruning_rate: float) -> None:
        self.keep.fill_(self.count_at(pruning_rate))

    def count_at(self, pruning_rate: float) -> int:
        return keep_count(self.channels, pruning_rate, self.keep_rule)

    def prunes_at(self, pruning_rate: float) -> bool:
        return self.keep.is_meta or int(self.keep) == self.count_at(pruning_rate)

    def kept_share(self, pruning_rate: float) -> float:
        """A schedule or a checkpoint may have moved the gate; on the meta device there are only options."""
        keep = self.count_at(pruning_rate) if self.keep.is_meta else int(self.keep)
        return keep / self.channels

    @property
    def takes_rates(self) -> bool:
        return True

    def fused_limits(self) -> tuple[Tensor, Tensor | None] | None:
        is_plain = type(self) is HeadGate and self.tie_rule == "lowest_index" and self.scales
        return (self.keep, None) if is_plain and not self._explores else None

    def spec(self) -> dict[str, Any] | str:
        if type(self) is not HeadGate:
            return super().spec()
        if self.tie_rule != "lowest_index":
            return f"its gate has tie_rule {self.tie_rule!r}"
        if not self.scales:
            return "its gate chooses channels without scaling them"
        return {"keep": int(self.keep)}

    def passed(self, saliency: Tensor, mask: Tensor) -> Tensor:
        return super().passed(saliency if self.scales else saliency - saliency.detach() + 1, mask)

    @property
    def _explores(self) -> bool:
        return self.training and bool(self.score_noise or self.exploration)

    def _explored(self, score: Tensor) -> Tensor:
        if self.score_noise:
            score = score + self.score_noise * score.std(-1, keepdim=True) * torch.randn_like(score)
        if self.exploration:
            at_random = torch.rand_like(score[:, :1, :1]) < self.exploration
            score = torch.where(at_random, torch.rand_like(score), score)
        return score

    def mask(self, saliency: Tensor) -> Tensor:
        score = saliency.detach()
        score = torch.where(score.isnan(), -torch.inf, score)
        if self._explores:
            score = self._explored(score)
        passes = best(score, self.keep)
        if self.tie_rule == "drop":
            border = score.where(~passes, -torch.inf).amax(-1, keepdim=True)
            return (score > border) | (self.keep == self.channels)
        return passes

    def extra_repr(self) -> str:
        kept = "?" if self.keep.is_meta else int(self.keep)
        return f"keep={kept} of {self.channels}"


def best(score: Tensor, keep: Tensor) -> Tensor:
    """True for the ``keep`` greatest along the last dimension; of equal ones the lowest index comes first."""
    if has_values(score) and score.numel():
        least = score.topk(int(keep), sorted=False).values.amin(-1, keepdim=True)
        passes = score >= least
        if int(passes.count_nonzero()) == int(keep) * (score.numel() // score.shape[-1]):
            return passes  # no tie at the border: nothing has to be sorted
    return ranks(score) < keep


def ranks(score: Tensor) -> Tensor:
    """Ranks entries along the last dimension: 0 for the greatest; of equal ones the lowest index comes first."""
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

    def reset(self, pruning_rate: float) -> None:
        self.threshold.zero_()

    @property
    def shared_threshold(self) -> Tensor | None:
        return self.threshold

    @property
    def takes_rates(self) -> bool:
        return True

    def fused_limits(self) -> tuple[Tensor, Tensor | None] | None:
        return (self.threshold, self.threshold) if type(self) is GlobalGate else None

    def spec(self) -> dict[str, Any] | str:
        return {"threshold": float(self.threshold)} if type(self) is GlobalGate else super().spec()

    def extra_repr(self) -> str:
        return "threshold=?" if self.threshold.is_meta else f"threshold={float(self.threshold):.4g}"
