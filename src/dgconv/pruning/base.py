"""What the pruning methods share: masks, when they are set, and how pruned channels are kept at zero."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..layers.controller import Controller
from ..values import BELOW_ONE, SHARE
from .channels import ChannelSet, Member, Shared, find_channel_sets
from .rate_search import TOLERANCE, search_rate

Examples = Callable[[], tuple[Tensor, Tensor]]  # training images and their labels, always the same
Choice = list[Tensor]  # for each channel set, which units are kept: bool [units]
GOLDEN = (math.sqrt(5) - 1) / 2  # whose multiples lie evenly between 0 and 1, however many they are
SMALLER = "static: a smaller plain network"  # how all of these run


class FilterPruning(nn.Module):
    """Static filter pruning of a whole network, of which it is the submodule ``pruning``.

    The trainer calls the hooks at their times, through :class:`PruningController`. Once pruned for good, a channel's
    filter and the scale and shift of the batch norms behind it are zero, and put back to zero after every step. So the
    channel is exactly zero and :func:`~dgconv.pruning.cut` changes nothing. (This is more than to mask the
    gradients of what is pruned: momentum would move it on.)

    A subclass is one method: it says how filters are rated, and when they are pruned.

    Args:
        model: the network; plain convolutions.
        rate: share of the channels to prune.
        budget: instead, the MACs to leave as a share of the dense network's.
        input_size: what the network is called with; default ``model.input_size``.
    """

    shared: Shared = "left"
    """What it cuts of channels that several layers share, see :mod:`dgconv.pruning.channels`."""
    default_rate = 0.3
    final_from = 1.0
    """Progress of training at which channels are pruned for good."""
    undecayed: tuple[str, ...] = ()
    """Names of parameters of its own that weight decay leaves alone."""
    examples: Examples | None = None
    """What it looks at to choose, if it looks at images; the controller has it."""

    def __init__(
        self,
        model: nn.Module,
        rate: float | None = None,
        budget: float | None = None,
        input_size: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        check_amount(rate, budget)
        self.sets = find_channel_sets(model, input_size, self.shared)
        if not self.sets:
            raise UserError(f"{type(model).__name__} has no channels that can be cut, so there is nothing to prune")
        for member in self._zeroed():
            self.register_buffer(_mask_name(member), torch.ones(len(member.of(model).weight)))  # 1 kept, 0 pruned
        self.budget, self.input_size = budget, input_size
        self.rate = self.default_rate if rate is None else rate
        if budget is not None:
            self.rate = self._rate_for_budget(model, self.as_many_as_chosen, TOLERANCE)
        self._is_final: bool | None = None  # not looked at yet
        self.register_load_state_dict_post_hook(_look_again)

    def forward(self, x: Tensor) -> Tensor:
        """Itself: an ``nn.Sequential`` calls all it holds."""
        return x

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3g}, {len(self.sets)} channel sets"

    # -- what a method is ----------------------------------------------------------------------------------------

    def scores(self, filters: Tensor) -> Tensor:
        """How much each filter of a layer counts, [filters]; the least go. ``filters`` is [filters, weights]."""
        raise NotImplementedError

    def choose(self, model: nn.Module, rate: float) -> Choice:
        """Which units stay at a rate: here, the same share of each set."""
        choice = []
        for channel_set, keep in zip(self.sets, self.counts(rate), strict=True):
            filters = channel_set.source.of(model).weight.detach().float().flatten(1)
            scores = self.scores(filters).cpu()[channel_set.source.channels].sum(1)  # [units]
            choice.append(best_of(scores, keep))
        return choice

    def counts(self, rate: float) -> list[int]:
        """How many units of each set stay. For a budget sets round at different places: so it is met in small steps."""
        step = 0.0 if self.budget is None else GOLDEN
        return [units_left(one.units, rate, number * step % 1) for number, one in enumerate(self.sets)]

    def as_many_as_chosen(self, model: nn.Module, rate: float) -> Choice:
        """Keeps as many units as :meth:`choose` does, whichever: enough to count MACs. Layers that share channels leave
        out different ones, as they will."""
        choice = []
        for number, (channel_set, keep) in enumerate(zip(self.sets, self.counts(rate), strict=True)):
            scores = torch.rand(channel_set.units, generator=torch.Generator().manual_seed(number))
            choice.append(best_of(scores, keep))
        return choice

    # -- hooks of the trainer ------------------------------------------------------------------------------------

    def before_step(self, model: nn.Module, progress: float) -> None:
        """Prunes for good once it is time."""
        if progress >= self.final_from and not self.is_final:
            self.prune(model)

    def see(self, model: nn.Module, images: Tensor, labels: Tensor, logits: Tensor) -> None:
        """Is shown what a step trains on."""

    def tapped(self, name: str, out: Any, is_training: bool) -> Any:
        """Is given what a layer makes on which there is a :class:`~dgconv.pruning._tap.Tap`; may return another."""
        return None

    def penalty(self, model: nn.Module) -> Tensor | None:
        """What is added to the loss."""
        return None

    @torch.no_grad()
    def after_update(self, model: nn.Module) -> None:
        """What is pruned stays zero."""
        for member in self._zeroed():
            layer, mask = member.of(model), self._mask(member)
            layer.weight.mul_(mask.view(-1, *[1] * (layer.weight.dim() - 1)))
            if layer.bias is not None:
                layer.bias.mul_(mask)

    def end_epoch(self, model: nn.Module, progress: float) -> None:
        """Follows each epoch."""

    # -- pruning -------------------------------------------------------------------------------------------------

    @property
    def is_final(self) -> bool:
        """Whether channels are pruned for good. Looks at the masks only once: on a GPU that waits for the device."""
        if self._is_final is None:
            self._is_final = any(bool((self._mask(member) == 0).any()) for member in self._zeroed())
        return self._is_final

    def kept(self) -> Choice:
        """What is kept, as the masks have it."""
        return [
            self._mask(channel_set.source).cpu()[channel_set.source.channels[:, 0]] > 0 for channel_set in self.sets
        ]

    @torch.no_grad()
    def prune(self, model: nn.Module) -> None:
        """Prunes for good."""
        if self.budget is not None and self.shared != "left":  # what is left to read depends on what is chosen
            self.rate = self._rate_for_budget(model, self.choose, math.inf)
        for channel_set, kept in zip(self.sets, self.choose(model, self.rate), strict=True):
            self._drop(channel_set, kept)
        self.after_update(model)
        self._is_final = True

    def _drop(self, channel_set: ChannelSet, kept: Tensor) -> None:
        for member in channel_set.having("filters", "norm"):
            mask = self._mask(member)
            mask[member.channels[~kept].flatten().to(mask.device)] = 0

    def _look(self) -> tuple[Tensor, Tensor]:
        """The examples."""
        if self.examples is None:
            raise UserError(
                f"{type(self).__name__} chooses by what the network makes of training images; give them to "
                "controllers_of(model, examples=...), a function that returns a batch and its labels"
            )
        return self.examples()

    def __getstate__(self) -> dict[str, Any]:
        """Copies leave out the examples, which hold on to a data set."""
        return self.__dict__ | {"examples": None}

    def _rate_for_budget(
        self, model: nn.Module, choose: Callable[[nn.Module, float], Choice], tolerance: float
    ) -> float:
        assert self.budget is not None
        return search_rate(model, self.sets, partial(choose, model), self.budget, self.input_size, tolerance)

    def _zeroed(self) -> list[Member]:
        """One for each layer that has zeros, though several sets may lie in it, as before a concatenation."""
        return list({m.layer: m for channel_set in self.sets for m in channel_set.having("filters", "norm")}.values())

    def _mask(self, member: Member) -> Tensor:
        return self.get_buffer(_mask_name(member))


class PruningController(Controller):
    """Calls the hooks of a network's pruning, which is a part of the network and so cannot hold it."""

    def __init__(self, model: nn.Module, pruning: FilterPruning, examples: Examples | None = None) -> None:
        self.model, self.pruning = model, pruning
        pruning.examples = examples or pruning.examples

    def before_step(self, progress: float) -> None:
        self.pruning.before_step(self.model, progress)

    def see(self, images: Tensor, labels: Tensor, logits: Tensor) -> None:
        self.pruning.see(self.model, images, labels, logits)

    def penalty(self, saliencies: object = ()) -> Tensor | None:
        return self.pruning.penalty(self.model)

    def after_update(self) -> None:
        self.pruning.after_update(self.model)

    def end_epoch(self, progress: float) -> None:
        self.pruning.end_epoch(self.model, progress)


def check_amount(rate: float | None, budget: float | None) -> None:
    if rate is not None and budget is not None:
        raise UserError("give a `prune_rate` or a `prune_budget`, not both: the one follows from the other")
    if rate is not None:
        BELOW_ONE.check("prune_rate", rate)
    if budget is not None:
        SHARE.check("prune_budget", budget)


def units_left(units: int, rate: float, more: float = 0.0) -> int:
    """``more`` than what the rate takes, below 1: only its fraction of a unit is rounded up sooner."""
    return units - math.floor(rate * units + more + 1e-6)  # 0.29 * 100 comes out below 29


def best_of(scores: Tensor, keep: int) -> Tensor:
    """Which are the ``keep`` largest, one at least; of equals, the first."""
    order = scores.sort(descending=True, stable=True).indices
    return torch.zeros(len(order), dtype=torch.bool).index_fill_(0, order[: max(1, keep)], True)


def _mask_name(member: Member) -> str:
    return "kept/" + member.layer.replace(".", "/")  # a buffer's name has no dots


def _look_again(module: nn.Module, keys: object) -> None:
    assert isinstance(module, FilterPruning)
    module._is_final = None
