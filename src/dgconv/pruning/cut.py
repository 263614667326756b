"""From a pruned network to a physically smaller one, without masks."""

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import UserError
from .channels import ChannelSet, is_depthwise

Widths = dict[str, list[int]]  # by layer, the sizes of its channel dimensions: [out, in], or [channels] of a batch norm


def cut_channels(model: nn.Module, sets: Iterable[ChannelSet], kept: Iterable[Tensor]) -> Widths:
    """Take out of a network, in place, all units of its channel sets that are not kept; the widths that changed."""
    dropped: dict[tuple[str, bool], list[Tensor]] = {}  # by layer, and whether its inputs are meant
    for channel_set, keep in zip(sets, kept, strict=True):
        for member in channel_set.members:
            channels = member.channels[~keep].flatten()
            dropped.setdefault((member.layer, member.role == "inputs"), []).append(channels)
    changed = [(*key, torch.cat(channels)) for key, channels in dropped.items() if any(map(len, channels))]
    for name, is_input, channels in changed:
        layer = model.get_submodule(name)
        keep = torch.ones(_widths(layer)[1 if is_input else 0], dtype=torch.bool)
        keep[channels] = False
        _select(layer, is_input, keep.nonzero().flatten())
    _note_features(model)
    return {name: _widths(model.get_submodule(name)) for name, _, _ in changed}


def resize_(model: nn.Module, widths: Mapping[str, Sequence[int]]) -> None:
    """Give the layers of a network the widths of one that was cut, so that its weights fit."""
    for name, sizes in widths.items():
        try:
            layer = model.get_submodule(name)
            for axis, (size, now) in enumerate(zip(sizes, _widths(layer), strict=True)):
                if not 0 < size <= now:
                    raise UserError(f"the width of {name} must be from 1 to {now}, got {size}")
                if size < now:
                    _select(layer, axis == 1, torch.arange(size))
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"the width {sizes!r} does not fit a layer {name!r} of {type(model).__name__}") from None
    _note_features(model)


def without_pruning(model: nn.Module) -> nn.Module:
    """A copy that no longer knows about masks."""
    plain = copy.deepcopy(model)
    if "pruning" in plain._modules:
        del plain.pruning
    return plain


def _widths(layer: nn.Module) -> list[int]:
    if isinstance(layer, nn.Conv2d):
        return [layer.out_channels, layer.in_channels]
    if isinstance(layer, nn.Linear):
        return [layer.out_features, layer.in_features]
    if isinstance(layer, nn.BatchNorm2d):
        return [layer.num_features]
    raise TypeError(f"{type(layer).__name__} has no width")


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
