"""Which channels of a network can be cut away, and what goes with them; Torch-Pruning finds out.

A channel can be cut where one convolution alone makes it: then its filter, the batch norms it passes and the weights
that read it are all there is of it.

Channels that several layers share, as those on the shortcuts of a ResNet, which sums of several filters make, are
cut in the ways of the methods that were published with such networks. ``"outputs"``: a convolution makes only some of
them, and its result is spread among the others before it is added (SFP, FPGM). ``"inputs"``: a batch norm that reads
them, before its convolution, lets only some pass (network slimming's channel selection). Either way the shared ones
stay as many as they were; who reads them passes over those that are always zero.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..errors import UserError

Layer = nn.Conv2d | nn.BatchNorm2d | nn.Linear
Role = Literal["filters", "norm", "inputs"]
Shared = Literal["left", "outputs", "inputs"]  # what is cut of channels that several layers share
MOVE_ZERO = ("Sigmoid", "Hardsigmoid", "Softplus", "Softmax", "ExpBackward", "CosBackward")
"""Functions, by torch's names for their gradients, that make something of a channel that is zero."""


@dataclass(frozen=True)
class Member:
    """A layer's part in a channel set. A depthwise convolution has ``filters``, and its inputs go with them."""

    layer: str
    role: Role
    channels: Tensor  # [units, n]: the channels of this layer that unit u consists of

    def of(self, model: nn.Module) -> Layer:
        """The layer itself."""
        return cast(Layer, model.get_submodule(self.layer))


@dataclass(frozen=True)
class ChannelSet:
    """Channels that one convolution makes, in units that can be cut one by one.

    A unit is a single channel, unless one of the layers has groups: these must stay alike, so a unit then has a
    channel in each of them.
    """

    members: tuple[Member, ...]  # the convolution that makes the channels comes first
    shared: Shared = "left"  # else: the channels stay, and some of them are no longer made, or no longer read

    @property
    def source(self) -> Member:
        return self.members[0]

    @property
    def units(self) -> int:
        return len(self.source.channels)

    def having(self, *roles: Role) -> list[Member]:
        return [member for member in self.members if member.role in roles]


def find_channel_sets(
    model: nn.Module, input_size: tuple[int, ...] | None = None, shared: Shared = "left"
) -> list[ChannelSet]:
    """All sets of a network, in module order. ``input_size`` is (channels, height, width)."""
    size = input_size or getattr(model, "input_size", None)
    if size is None:
        raise UserError("this model does not say what it is called with; give input_size=(channels, height, width)")
    skeleton = copy.deepcopy(model).requires_grad_(True).to("meta")  # shapes are enough
    names = {module: name for name, module in skeleton.named_modules()}
    with torch.enable_grad():
        example = torch.zeros(1, *size, device="meta")
        graph = _torch_pruning().DependencyGraph().build_dependency(skeleton, (example,), verbose=False)
    groups = list(graph.get_all_groups(root_module_types=[nn.Conv2d]))
    found = [alone for group in groups if (alone := _channel_set(group, graph, names))]
    if shared == "outputs":
        found += [one for group in groups for one in _added_up(group, graph, names)]
    elif shared == "inputs":
        readers = _norms_in_front(graph, names)
        taken = {one.source.layer for one in readers}
        found = [one for one in found if taken.isdisjoint(member.layer for member in one.members)] + readers
    order = {name: place for place, name in enumerate(names.values())}
    return sorted(found, key=lambda channel_set: order[channel_set.source.layer])


def _torch_pruning() -> Any:
    try:
        import torch_pruning
    except ImportError:
        raise UserError(
            "filter pruning needs the package torch-pruning, which is not installed: pip install 'dgconv[pruning]'"
        ) from None
    return torch_pruning


def _channel_set(group: Any, graph: Any, names: dict[nn.Module, str]) -> ChannelSet | None:
    """The channel set of a group of Torch-Pruning's; None if there is something in it that we do not cut."""
    layers: list[tuple[nn.Module, Role, dict[int, list[int]]]] = []
    for item in group.items:
        module = item.dep.target.module
        if module not in names:  # no layer, but an operation between layers
            if "_OutputOp" in str(module) or any(name in str(module) for name in MOVE_ZERO):
                return None
            continue
        role = _role(module, graph.is_out_channel_pruning_fn(item.dep.handler))
        if role is None:
            return None
        channels: dict[int, list[int]] = {}
        for root, channel in zip(item.root_idxs, item.idxs, strict=True):
            channels.setdefault(root, []).append(channel)
        layers.append((module, role, channels))

    sources = [entry for entry in layers if entry[1] == "filters" and not is_depthwise(entry[0])]
    if len(sources) != 1 or all(role != "inputs" for _, role, _ in layers):  # shared, or the network's output
        return None
    count = len(sources[0][2])
    groups = max(_groups(module) for module, _, _ in layers)
    if count % groups or any(len(channels) != count for _, _, channels in layers):
        return None
    members = []
    for module, role, channels in sorted(layers, key=lambda entry: entry is not sources[0]):
        units = [
            [c for root in range(u, count, count // groups) for c in channels[root]] for u in range(count // groups)
        ]
        member = Member(names[module], role, torch.tensor(units))
        if _groups(module) > 1 and not _spreads(member.channels, module, role):
            return None
        members.append(member)
    return ChannelSet(tuple(members))


def _added_up(group: Any, graph: Any, names: dict[nn.Module, str]) -> Iterator[ChannelSet]:
    """A set for each convolution of several whose results are added up, with the batch norms before the addition.

    The convolution of a shortcut is none of them: what is left out there would be left out of the whole block.
    """
    targets = [(item.dep.target.module, graph.is_out_channel_pruning_fn(item.dep.handler)) for item in group.items]
    if any("_OutputOp" in str(module) for module, _ in targets):
        return
    sources = [module for module, is_output in targets if isinstance(module, nn.Conv2d) and is_output]
    if len(set(sources)) < 2 or any(module.groups > 1 for module in sources):
        return
    for conv in dict.fromkeys(sources):
        if _is_shortcut(graph.module2node[conv]):
            continue
        channels = torch.arange(conv.out_channels)[:, None]
        norms = [Member(names[norm], "norm", channels) for norm in _norms_behind(graph.module2node[conv])]
        yield ChannelSet((Member(names[conv], "filters", channels), *norms), "outputs")


def _norms_behind(node: Any) -> list[nn.Module]:
    """The batch norms that alone read a convolution, one after the other."""
    found: list[nn.Module] = []
    while len(node.outputs) == 1 and _role(node.outputs[0].module, True) == "norm":
        node = node.outputs[0]
        found.append(node.module)
    return found


def _is_shortcut(node: Any) -> bool:
    """Whether a convolution reads what another one reads, as that of a shortcut and the first of its block do."""
    while len(node.inputs) == 1:
        before, node = node, node.inputs[0]
        if any(_leads_to_convolution(other) for other in node.outputs if other is not before):
            return True
        if isinstance(node.module, nn.Conv2d):
            return False
    return False


def _leads_to_convolution(node: Any) -> bool:
    while not isinstance(node.module, nn.Conv2d):
        if len(node.outputs) != 1 or len(node.inputs) != 1:
            return False
        node = node.outputs[0]
    return True


def _norms_in_front(graph: Any, names: dict[nn.Module, str]) -> list[ChannelSet]:
    """A set for each batch norm that reads channels of several layers, as one before its convolution does."""
    found = []
    for module, node in graph.module2node.items():
        if _role(module, True) == "norm" and _reads_shared(node):
            channels = torch.arange(module.num_features)[:, None]
            found.append(ChannelSet((Member(names[module], "norm", channels),), "inputs"))
    return found


def _reads_shared(node: Any) -> bool:
    """Whether what it reads is made by several layers, or read by others, too; the image is neither."""
    while len(node.inputs) == 1:
        node = node.inputs[0]
        if len(node.outputs) > 1:
            return True
        if isinstance(node.module, nn.Conv2d):
            return False
    return len(node.inputs) > 1


def _role(module: nn.Module, is_output: bool) -> Role | None:
    if isinstance(module, nn.BatchNorm2d):
        return "norm" if module.affine and module.track_running_stats else None
    if isinstance(module, nn.Conv2d):
        return "filters" if is_output or is_depthwise(module) else "inputs"
    return "inputs" if isinstance(module, nn.Linear) and not is_output else None


def is_depthwise(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and module.groups == module.out_channels == module.in_channels > 1


def _groups(module: nn.Module) -> int:
    """How many groups must stay alike."""
    return module.groups if isinstance(module, nn.Conv2d) and not is_depthwise(module) else 1


def _spreads(channels: Tensor, module: nn.Module, role: Role) -> bool:
    """Whether each unit has one channel in each group, at the same place of it, and the units are all there is."""
    assert isinstance(module, nn.Conv2d)
    total = module.out_channels if role == "filters" else module.in_channels
    size = total // module.groups
    one_each = (channels // size).sort(1).values.equal(torch.arange(module.groups).expand(len(channels), -1))
    return one_each and len(channels) == size and bool((channels % size == channels[:, :1] % size).all())
