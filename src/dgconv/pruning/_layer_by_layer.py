"""Pruning that goes through a network layer by layer, and looks at what those that read the channels make of images."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..layers.mode import evaluating
from .base import FilterPruning
from .channels import ChannelSet, Member
from .cut import without_pruning


class Pass(NamedTuple):
    """What a layer was given and what it gave, in one run of the network."""

    inputs: Tensor
    outputs: Tensor


class LayerByLayer(FilterPruning):
    """Prunes one channel set after the other, each with those before it pruned, so that errors do not add up.

    ``whole`` is the network as it was; the readers of a set, which are to come near to what they gave there, may get
    other weights.
    """

    def prune(self, model: nn.Module) -> None:
        images, labels = self._look()
        whole = without_pruning(model).eval()
        with evaluating(model):
            for channel_set, keep in zip(self.sets, self.counts(self.rate), strict=True):
                kept = self.choose_of(model, whole, channel_set, max(1, keep), images, labels)
                self._drop(channel_set, kept)
                self.after_update(model)
        self._is_final = True

    def choose_of(
        self, model: nn.Module, whole: nn.Module, channel_set: ChannelSet, keep: int, images: Tensor, labels: Tensor
    ) -> Tensor:
        """Which units of a set stay, ``keep`` of them."""
        raise NotImplementedError


def readers_of(channel_set: ChannelSet) -> list[Member]:
    return channel_set.having("inputs")


@contextmanager
def watching(model: nn.Module, layers: list[str]) -> Iterator[dict[str, Pass]]:
    """Notes what these layers are given and give, whenever the model runs within."""
    seen: dict[str, Pass] = {}

    def note(name: str, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        seen[name] = Pass(inputs[0], outputs)

    handles = [
        model.get_submodule(name).register_forward_hook(lambda _, x, out, name=name: note(name, x, out))
        for name in layers
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def groups_of(reader: nn.Module) -> int:
    return reader.groups if isinstance(reader, nn.Conv2d) else 1


def by_input(weight: Tensor, groups: int) -> Tensor:
    """The weights with which each input channel is read, [C, C' / groups, k²]."""
    return (
        weight.flatten(2).unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        if weight.dim() > 2
        else (weight.t()[:, :, None])
    )


def from_input(rows: Tensor, like: Tensor, groups: int) -> Tensor:
    """What :func:`by_input` was made of."""
    if like.dim() == 2:
        return rows[:, :, 0].t()
    return rows.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).view_as(like)


@torch.no_grad()
def units_to_inputs(member: Member, kept: Tensor, channels: int) -> Tensor:
    """Which inputs of a reader stay, [C], if these units of a set do; those that are not of the set do, too."""
    there = torch.ones(channels, dtype=torch.bool)
    there[member.channels[~kept].flatten()] = False
    return there
