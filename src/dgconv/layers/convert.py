"""Puts dynamic group convolution, or a rival of it, into a network that was built, and perhaps trained, without it."""

import gc
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..errors import UserError
from ..text import as_text
from .dynamic_group_conv import DynamicGroupConv2d
from .gate import HeadGate, KeepRule, TieRule
from .method import ConvLayer, MethodLayer
from .mode import evaluating
from .own_padding import has_own_forward, own_padding
from .saliency import hidden_width
from .swap import swap_

Convolution = nn.Conv2d | nn.ConvTranspose2d | DynamicGroupConv2d
FilterFn = Callable[[str, nn.Conv2d], bool | str]
InputSize = tuple[int, int, int]

log = logging.getLogger(__name__)

GEOMETRY = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass(frozen=True)
class DGCConfig:
    """How :func:`convert_` builds its layers: the options of :class:`DynamicGroupConv2d`, and ``preserve``.

    With ``preserve`` every saliency starts at exactly 1, so at pruning rate 0 the network computes what it
    computed before. Above 0 all channels tie at first and each head keeps the same ones, by index, until
    training tells them apart: better start at 0 and let a schedule raise the rate. Without ``preserve`` the
    generators start at random, as in training from scratch.

    A ``state_dict`` holds how many channels are kept, not these options: to load a converted network's weights, convert
    with the same config first.
    """

    heads: int = 4
    pruning_rate: float = 0.75
    squeeze: int = 16
    halve_squeeze: bool = True
    gate: Literal["head", "global"] = "head"
    keep_rule: KeepRule = "ceil"
    tie_rule: TieRule = "lowest_index"
    preserve: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.heads, int) or self.heads < 1:
            raise UserError(f"heads must be a whole number, at least 1, got {self.heads!r}")
        if self.gate not in ("head", "global"):
            raise UserError(f"gate must be 'head' or 'global', got {self.gate!r}")
        hidden_width(1, self.squeeze, self.halve_squeeze)
        HeadGate(1, self.pruning_rate, keep_rule=self.keep_rule, tie_rule=self.tie_rule, device="meta")
        if self.preserve and self.gate == "head" and self.tie_rule == "drop" and self.pruning_rate > 0:
            raise UserError(
                "tie_rule='drop' with preserve=True prunes everything for good: all saliencies start at 1, "
                "and ties go. Use tie_rule='lowest_index', or preserve=False, or start at pruning_rate=0"
            )


@dataclass(frozen=True)
class ConvertedConv:
    """What became of one convolution. ``reason`` says why it was left, and its other names if shared."""

    name: str
    action: Literal["replaced", "left"]
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True)
class ConversionReport:
    """Every convolution of the network, in module order, and what :func:`convert_` did with it.

    ``print`` it, with or without rich, for a table.
    """

    rows: tuple[ConvertedConv, ...]

    @property
    def replaced(self) -> list[ConvertedConv]:
        return [row for row in self.rows if row.action == "replaced"]

    @property
    def left(self) -> list[ConvertedConv]:
        return [row for row in self.rows if row.action == "left"]

    @property
    def summary(self) -> str:
        """One line."""
        return f"replaced {len(self.replaced)} of {len(self.rows)} convolutions, left {len(self.left)}"

    def __rich__(self) -> Group:
        table = Table("convolution", "", "channels", "kernel", "reason")
        for row in self.rows:
            cells = [
                row.name,
                row.action,
                f"{row.in_channels} -> {row.out_channels}",
                "x".join(map(str, row.kernel_size)),
                row.reason,
            ]
            table.add_row(*map(Text, cells), style="" if row.action == "replaced" else "dim")
        lines = [Text(self.summary)]
        if not self.replaced:
            lines.append(Text("Warning: nothing was replaced; the table gives the reasons", style="yellow"))
        return Group(table, *lines)

    def __str__(self) -> str:
        return as_text(self)


def convert_(
    model: nn.Module,
    config: DGCConfig | ConvLayer | None = None,
    filter_fn: FilterFn | None = None,
    *,
    input_size: InputSize | None = None,
) -> ConversionReport:
    """Replace the convolutions of a network by :class:`DynamicGroupConv2d`, or another layer, in place.

    The new layers take over the very parameters of the old, under the same names: checkpoints of the dense
    network load (with ``strict=False``, the generators being new), tied weights stay tied and an optimizer's
    references stay good. Only the generators' parameters are new to the optimizer; where one is there already that
    has the network's parameters, a warning says so.

    A convolution with a forward of its own that only pads first, as ports of TensorFlow's networks have it, counts as
    one: whether it does is found by trying. Whatever does more than that is left, and so are transposed and grouped
    convolutions, and those whose generators would cost more MACs than they save, as in squeeze-and-excitation; the
    report says which and why.

    Args:
        model: any module that contains convolutions.
        config: options of the new layers; default ``DGCConfig()``. Or another layer with ``nn.Conv2d``'s signature,
            options bound to it: ``partial(LearnedGroupConv2d, groups=8)``. A layer whose ``weight`` has another shape
            than the undivided one (standard groups), or that has none, starts with new weights.
        filter_fn: ``filter_fn(name, conv)`` tells whether to replace one that can be, or as a string why not. By
            default all are but the network's first convolution: three colours leave nothing to choose from. A shared
            convolution is asked about once, under its first name. :func:`dgconv.bench.where_faster` makes one that
            goes by time.
        input_size: channels, height and width of the images, at which MACs are counted; by default what the network
            itself says, as those of timm and of ``create_model`` do. Where nobody says it, none is left for its MACs.
    """
    if isinstance(model, nn.Conv2d):
        raise UserError(
            "the model is itself a convolution, and nothing holds it in which it could be replaced; "
            "wrap it in a module, as nn.Sequential(conv)"
        )
    if not isinstance(model, nn.Module):
        raise UserError(f"convert_ takes an nn.Module, got a {type(model).__name__}")
    if filter_fn is not None and not callable(filter_fn):
        raise UserError(f"filter_fn must be a function of a name and a convolution, got {filter_fn!r}")
    config = DGCConfig() if config is None else config
    if config is DGCConfig or not (isinstance(config, DGCConfig) or callable(config)):
        raise UserError(
            f"config must be a DGCConfig, as DGCConfig(heads=4), or a layer with nn.Conv2d's signature, got {config!r}"
        )
    make = partial(_dynamic, config=config) if isinstance(config, DGCConfig) else partial(_other, make=config)
    names = _convolutions(model)
    first = next((conv for conv in names if not isinstance(conv, nn.ConvTranspose2d)), None)
    if first is None:
        raise UserError(f"{type(model).__name__} has no nn.Conv2d to replace")

    pixels = _output_pixels(model, names, input_size) if isinstance(config, DGCConfig) else {}
    rows: list[ConvertedConv] = []
    layers: dict[nn.Module, nn.Module] = {}
    for conv, (name, *aliases) in names.items():
        reason = _why_not(conv)
        if reason is None and isinstance(config, DGCConfig) and conv.out_channels % config.heads:
            reason = f"{config.heads} heads do not divide {conv.out_channels} output channels"
        if reason is None and isinstance(conv, nn.Conv2d):
            if filter_fn is None:
                reason = "first conv" if conv is first else None
            elif (answer := filter_fn(name, conv)) is not True:
                reason = answer if isinstance(answer, str) else None if answer else "filter_fn"
            if reason is None:
                try:
                    layer = make(conv)
                except UserError as error:  # it does not fit here
                    reason = str(error)
                else:
                    reason = _why_not_worth_it(layer, pixels.get(conv, ()))
                    layers |= {} if reason else {conv: layer}
        notes = [reason] if reason else []
        notes += [f"shared, also {', '.join(aliases)}"] if aliases else []
        action: Literal["replaced", "left"] = "replaced" if conv in layers else "left"
        rows.append(
            ConvertedConv(name, action, conv.in_channels, conv.out_channels, conv.kernel_size, "; ".join(notes))
        )
    optimizers = _optimizers_of(model) if any(list(layer.children()) for layer in layers.values()) else []
    swap_(model, layers)  # at the end, so that an error on the way leaves the model whole
    if optimizers:
        log.warning(
            "an optimizer (%s) was made before convert_ and does not know the new layers' own parameters, as those of "
            "the generators: they would never be trained. Make the optimizer after convert_, or add them with "
            "add_param_group",
            type(optimizers[0]).__name__,
        )
    return ConversionReport(tuple(rows))


def _convolutions(model: nn.Module) -> dict[Convolution, list[str]]:
    """Each convolution once, in module order, with all its names."""
    names: dict[Convolution, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, Convolution):
            names.setdefault(module, []).append(name)
    return names


def _output_pixels(
    model: nn.Module, convolutions: dict[Convolution, list[str]], input_size: InputSize | None
) -> dict[Convolution, list[int]]:
    """How many pixels each convolution computes in each of its calls, for an image of this size; none if that is not
    known, and the network does not say it."""
    size = input_size or _own_input_size(model)
    if size is None:
        return {}
    pixels: dict[Convolution, list[int]] = {}

    def note(conv: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        pixels.setdefault(cast(Convolution, conv), []).append(math.prod(out.shape[2:]))

    handles = [conv.register_forward_hook(note) for conv in convolutions]
    example = next(model.parameters())
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(model):
            model(torch.zeros(1, *size, device=example.device, dtype=example.dtype))
    except Exception as error:  # of any kind: it is the user's code
        if input_size is None:  # which was only a guess of ours
            return {}
        raise UserError(f"the network does not take images of {' x '.join(map(str, size))}: {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    return pixels


def _own_input_size(model: nn.Module) -> InputSize | None:
    """What a network of ours, or of timm, says of the images it is for."""
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    size = getattr(model, "input_size", None) or (config.get("input_size") if isinstance(config, dict) else None)
    if isinstance(size, tuple | list) and len(size) == 3 and all(isinstance(part, int) for part in size):
        return cast(InputSize, tuple(size))
    return None


def _why_not_worth_it(layer: nn.Module, pixels: Sequence[int]) -> str | None:
    """Refuses a dynamic layer whose generator and gate cost more than the channels that they leave out, in MACs or, as
    in squeeze and excitation, in time.

    One that starts unpruned is judged by the usual rate, for a schedule will raise it. The gate and the generator's
    activations are counted as the authors do, at 3 C + C/d a head.
    """
    if not pixels or not isinstance(layer, DynamicGroupConv2d):
        return None
    if max(pixels) == 1:
        return "it computes one pixel: to choose takes longer than to compute"
    dense = layer.weight.numel() * sum(pixels)
    rate = layer.pruning_rate or DGCConfig.pruning_rate
    hidden, channels = layer.generator.hidden, layer.in_channels
    deciding = layer.heads * (2 * hidden * channels + hidden + 3 * channels) * len(pixels)
    dynamic = dense * (1 - rate) + deciding
    if dynamic < dense:
        return None
    return f"choosing costs more than it saves: {dense:,} MACs would become {dynamic:,.0f}"


def _optimizers_of(model: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers there are that hold parameters of the network."""
    own = {id(parameter) for parameter in model.parameters()}
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.optim.Optimizer)]
    return [o for o in found if any(id(p) in own for group in o.param_groups for p in group["params"])]


def _why_not(conv: Convolution) -> str | None:
    """The reason why a convolution cannot be replaced, whatever by, if there is one."""
    if isinstance(conv, DynamicGroupConv2d):
        return "already dynamic"
    if isinstance(conv, nn.ConvTranspose2d):
        return "transposed"
    if isinstance(conv, MethodLayer):
        return f"already a {type(conv).__name__}"
    if parametrize.is_parametrized(conv):
        return "parametrized"
    if type(conv.weight) is not nn.Parameter:  # a lazy module before its first pass, a quantized weight
        return f"weight is a {type(conv.weight).__name__}, not an nn.Parameter"
    if not conv.weight.is_floating_point():
        return f"weight is {conv.weight.dtype}"
    if any(getattr(conv, kind) for kind in HOOKS):
        return "has hooks"
    if has_own_forward(conv) and own_padding(conv) is None:
        return f"{type(conv).__name__} has its own forward, which does more than pad and convolve"
    has_more = any(
        next(part.parameters(), None) is not None or next(part.buffers(), None) is not None for part in conv.children()
    )
    if {*conv._parameters, *conv._buffers} != {"weight", "bias"} or has_more:
        return "holds more than weight and bias"
    if conv.groups > 1:
        return "depthwise" if conv.groups == conv.in_channels else f"{conv.groups} groups"
    if conv.padding_mode != "zeros":
        return f"padding_mode {conv.padding_mode!r}"
    return None


def _dynamic(conv: nn.Conv2d, config: DGCConfig) -> DynamicGroupConv2d:
    """The layer that takes a convolution's place, with its parameters."""
    options = asdict(config)
    options["saliency_start"] = "ones" if options.pop("preserve") else "random"
    return cast(DynamicGroupConv2d, _other(conv, partial(DynamicGroupConv2d, **options)))


def _other(conv: nn.Conv2d, make: ConvLayer) -> nn.Module:
    own = own_padding(conv) if has_own_forward(conv) else None
    geometry = {name: getattr(conv, name) for name in GEOMETRY} | ({"padding": own.padding} if own else {})
    layer = make(
        **geometry,
        bias=conv.bias is not None,
        device=conv.weight.device,
        dtype=conv.weight.dtype,
    )
    if own is not None and (own.same or any(own.extra_padding)):
        if not isinstance(layer, DynamicGroupConv2d):
            raise UserError(f"{type(conv).__name__} pads unevenly, which a {type(layer).__name__} does not")
        layer.same, layer.extra_padding = own.same, own.extra_padding
    if getattr(layer, "normalizes", False):
        raise UserError(
            f"{type(layer).__name__} holds the batch norm that follows it, and where the network has its own is not to "
            "be seen from here; build the network with it, as create_model does"
        )
    weight = getattr(layer, "weight", None)
    if weight is not None and weight.shape == conv.weight.shape:
        layer.weight, layer.bias = conv.weight, conv.bias  # type: ignore[assignment]
    return layer.train(conv.training)
