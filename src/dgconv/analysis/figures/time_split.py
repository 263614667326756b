"""Where the time of a deployed network goes, in one call on this CPU."""

import copy

import torch
from torch import nn

from ...deploy import prepare
from ...deploy.run.timing import median_split
from ...environment import describe_environment
from ...errors import UserError
from ...layers import StandardGroupConv2d
from ...layers.select import dynamic_layers
from ...layers.swap import swap_
from ..trained_run import TrainedRun
from .style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, Drawing, entitle, in_house_style, new_figure

NAMES = {
    "pool": ("pooling of each channel", SKY),
    "generator": ("saliency generators", ORANGE),
    "select": ("choosing the channels", RED),
    "gather": ("gathering channels and filters", GREEN),
    "convolution": ("convolutions, static and dynamic", BLUE),
    "other": ("everything else", GREY),
    "torch": ("steps left to torch", PURPLE),
}
REPEATS = 15


@in_house_style
def draw_time_split(run: TrainedRun, batch_size: int = 1, repeats: int = REPEATS) -> Drawing:
    """The paper's sum for ResNet-18, 5.1 + 0.8 + 1.9 ms: convolutions as with standard groups, generators, and the
    rest, which goes into gathering channels and filters; the last only where groups of the same cost exist."""
    model = run.model_on_cpu
    if not any(True for _ in dynamic_layers(model)):
        raise UserError("needs a network with dynamic layers")
    images = next(iter(run.data.test.batches(batch_size, train=False)))[0]
    parts = median_split(prepare(model), images, repeats)
    total = sum(parts.values())
    twin = with_standard_groups(model) if "convolution" in parts else None  # torch's are not timed one by one
    if twin is not None:
        _tell_gathering(parts, median_split(prepare(twin), images, repeats)["convolution"])

    figure = new_figure(2.1)
    axes = figure.subplots()
    left = 0.0
    for part, seconds in parts.items():
        name, colour = NAMES.get(part, (part, GREEN))
        label = f"{name}: {1e6 * seconds:,.0f} µs, {seconds / total:.1%}"
        axes.barh(0, 1e6 * seconds, left=1e6 * left, color=colour, label=label, height=0.6, edgecolor="white", lw=0.5)
        left += seconds
    axes.set(yticks=[], xlabel=f"microseconds of one call, batch {batch_size}; median of {repeats}")
    axes.set_xlim(0, 1e6 * total)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2)
    machine = describe_environment(torch.device("cpu"))
    alike = "; gathering: what the same network with standard groups needs less" if twin is not None else ""
    entitle(figure, f"Where the time of {run.name} goes once it is prepared\n{machine['hardware']}{alike}")
    return Drawing(
        figure,
        {"seconds": parts, "total": total, "batch_size": batch_size, "repeats": repeats, "environment": machine},
    )


def with_standard_groups(model: nn.Module) -> nn.Module | None:
    """A copy with standard groups of the same cost in place of dynamic ones; None where the rates allow none."""
    twin = copy.deepcopy(model)
    swaps: dict[nn.Module, nn.Module] = {}
    for _, layer in dynamic_layers(twin):
        groups = round(1 / (1 - layer.pruning_rate))
        same_cost = abs(groups * (1 - layer.pruning_rate) - 1) < 1e-6
        is_padded_otherwise = layer.same or any(layer.extra_padding)
        if not same_cost or layer.in_channels % groups or layer.out_channels % groups or is_padded_otherwise:
            return None
        swaps[layer] = StandardGroupConv2d(
            layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation,
            groups=groups, bias=layer.bias is not None,
        )  # fmt: skip
    swap_(twin, swaps)
    return twin.eval()


def _tell_gathering(parts: dict[str, float], standard: float) -> None:
    """Divides the time of the convolutions; noise may make it less than that of standard groups."""
    gathering = max(0.0, parts["convolution"] - standard)
    parts["gather"] = gathering
    parts["convolution"] -= gathering
