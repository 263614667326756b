"""From a pruned network to a physically smaller one, without masks."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..layers.indexed import IndexedGroupConv2d, IndexedLinear
from ..layers.spread import Spread
from ._tap import take_off_taps
from .channels import ChannelSet, is_depthwise
from .probe import always_zero

Widths = dict[str, list[int]]
"""By layer, the sizes of its channel dimensions: [out, in], or [channels] of a batch norm. A layer that works on some
of the channels around it has theirs, too: [out, in, out around, in around], or [channels, channels around]."""


@dataclass
class _Change:
    """What becomes of one layer; None where nothing does."""

    outputs: Tensor | None = None  # that it keeps
    inputs: Tensor | None = None
    reads: Tensor | None = None  # of these inputs
    around: int | None = None  # channels among which its outputs are spread, at the places that they had

    def apply(self, model: nn.Module, name: str) -> None:
        layer = model.get_submodule(name)
        if self.outputs is not None:
            _select(layer, False, self.outputs)
        if self.inputs is not None:
            _select(layer, True, self.inputs)
        if self.reads is not None:
            layer = _reading(layer, self.reads)
        if self.around is not None and self.outputs is not None:
            layer = Spread(layer, self.outputs.to(_device(layer)), self.around)
        if layer is not model.get_submodule(name):
            model.set_submodule(name, layer.train(model.get_submodule(name).training))


def cut_channels(
    model: nn.Module,
    sets: Sequence[ChannelSet],
    kept: Sequence[Tensor],
    input_size: tuple[int, ...] | None = None,
) -> Widths:
    """Take out of a network, in place, all units of its channel sets that are not kept; the widths that changed."""
    changes = _changes(model, sets, kept)
    if any(channel_set.shared != "left" for channel_set in sets):
        zeros = always_zero(model, sets, kept, input_size or model.input_size)  # type: ignore[arg-type]
        for name, zero in zeros.items():
            there = changes[name].inputs if name in changes else None
            left = zero if there is None else zero[there]
            if left.any():
                changes.setdefault(name, _Change()).reads = (~left).nonzero().flatten()
    for name, change in changes.items():
        change.apply(model, name)
    _note_features(model)
    return {name: _widths(model.get_submodule(name)) for name in changes}


def _changes(model: nn.Module, sets: Iterable[ChannelSet], kept: Iterable[Tensor]) -> dict[str, _Change]:
    dropped: dict[tuple[str, bool], list[Tensor]] = {}  # by layer, and whether its inputs are meant
    spread: set[str] = set()
    for channel_set, keep in zip(sets, kept, strict=True):
        if channel_set.shared == "inputs":  # a batch norm stays as wide as what it reads
            continue
        for member in channel_set.members:
            channels = member.channels[~keep].flatten()
            dropped.setdefault((member.layer, member.role == "inputs"), []).append(channels)
        if channel_set.shared == "outputs":
            spread.add(channel_set.members[-1].layer)
    changes: dict[str, _Change] = {}
    for (name, is_input), parts in dropped.items():
        if any(map(len, parts)):
            width = _widths(model.get_submodule(name))[1 if is_input else 0]
            keep = torch.ones(width, dtype=torch.bool)
            keep[torch.cat(parts)] = False
            change = changes.setdefault(name, _Change())
            if is_input:
                change.inputs = keep.nonzero().flatten()
            else:
                change.outputs, change.around = keep.nonzero().flatten(), width if name in spread else None
    return changes


def resize_(model: nn.Module, widths: Mapping[str, Sequence[int]]) -> None:
    """Give the layers of a network the widths of one that was cut, so that its weights fit."""
    for name, sizes in widths.items():
        try:
            now = _widths(model.get_submodule(name))
            own, around = sizes[: len(now)], sizes[len(now) :] or sizes
            for size, most in [*zip(around, now, strict=True), *zip(own, around, strict=True)]:
                if not 0 < size <= most:
                    raise UserError(f"the width of {name} must be from 1 to {most}, got {size}")
            change = _Change(_first(own[0], now[0]), around=around[0] if own[0] < around[0] else None)
            if len(now) > 1:
                change.inputs, change.reads = _first(around[1], now[1]), _first(own[1], around[1])
            change.apply(model, name)
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"the width {sizes!r} does not fit a layer {name!r} of {type(model).__name__}") from None
    _note_features(model)


def _first(size: int, of: int) -> Tensor | None:
    return torch.arange(size) if size < of else None


def without_pruning(model: nn.Module) -> nn.Module:
    """A copy that no longer knows about masks."""
    plain = copy.deepcopy(model)
    if "pruning" in plain._modules:
        del plain.pruning
        take_off_taps(plain)
    return plain


def _reading(layer: nn.Module, inputs: Tensor) -> nn.Module:
    """The layer that reads these of its inputs only."""
    index = inputs.to(_device(layer))
    if isinstance(layer, nn.Linear):
        return IndexedLinear(layer, index)
    assert isinstance(layer, nn.Conv2d)
    bias = None if layer.bias is None else layer.bias.detach()
    return IndexedGroupConv2d(layer, index, layer.weight.detach()[:, index], bias, groups=1)


def _device(layer: nn.Module) -> torch.device:
    return next(layer.parameters()).device


def _widths(layer: nn.Module) -> list[int]:
    own, around = _own_and_around(layer)
    return own if own == around else own + around


def _own_and_around(layer: nn.Module) -> tuple[list[int], list[int]]:
    if isinstance(layer, Spread):
        own, around = _own_and_around(layer.layer)
        return own, [layer.channels, *around[1:]]
    if isinstance(layer, nn.Conv2d):
        own = [layer.out_channels, layer.in_channels]
    elif isinstance(layer, nn.Linear):
        own = [layer.out_features, layer.in_features]
    elif isinstance(layer, nn.BatchNorm2d):
        own = [layer.num_features]
    else:
        raise TypeError(f"{type(layer).__name__} has no width")
    return own, [*own[:1], layer.picked_from] if isinstance(layer, IndexedGroupConv2d | IndexedLinear) else own


@torch.no_grad()
def _select(layer: nn.Module, is_input: bool, channels: Tensor) -> None:
    """Leave these output channels (features, filters) of a layer, or these inputs."""
    count = len(channels)
    if isinstance(layer, nn.Linear):
        _narrow(layer, ("weight",), 1, channels)
        layer.in_features = count
    elif isinstance(layer, nn.BatchNorm2d):
        _narrow(layer, ("weight", "bias", "running_mean", "running_var"), 0, channels)
        layer.num_features = count
    elif isinstance(layer, nn.Conv2d) and is_input:
        _narrow(layer, ("weight",), 1, channels[: count // layer.groups])  # the groups are alike, so the first tells
        layer.in_channels = count
    elif isinstance(layer, nn.Conv2d):
        if is_depthwise(layer):
            layer.in_channels = layer.groups = count
        _narrow(layer, ("weight", "bias"), 0, channels)
        layer.out_channels = count


def _narrow(layer: nn.Module, names: Iterable[str], axis: int, channels: Tensor) -> None:
    for name in names:
        old = getattr(layer, name)
        if old is not None:
            new = old.index_select(axis, channels.to(old.device))
            setattr(layer, name, nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new)


def _note_features(model: nn.Module) -> None:
    """A network of ours knows how many features its classifier gets."""
    if hasattr(model, "num_features") and hasattr(model, "get_classifier"):
        model.num_features = getattr(model.get_classifier(), "in_features", model.num_features)  # type: ignore[operator]
