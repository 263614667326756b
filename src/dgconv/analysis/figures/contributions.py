"""Average contribution of input channels to output channels, for two images (the paper's first figure)."""

from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError, unknown_name
from ...layers import DynamicGroupConv2d
from ...layers.saliency import passing_overflow
from ...layers.select import dynamic_layers
from ..trained_run import TrainedRun
from ._images import first_of_each_class, one_of_each_class, shortened, show_image
from .style import BLUE, GREY, RED, Drawing, entitle, in_large_type, new_figure

OUTPUTS = 4
CLASS_LETTERS = 18  # that fit above a panel


@in_large_type
def draw_contributions(run: TrainedRun, layer_name: str | None = None, outputs: int = OUTPUTS) -> Drawing:
    """Of a network without dynamic layers, as the paper's DenseNet, a plain convolution is shown, which keeps them all.

    Args:
        layer_name: a dynamic layer, or a plain convolution; default the one in the middle.
        outputs: output channels to show, as evenly spread over the layer as can be, each of another head.
    """
    name, layer = _pick(run, layer_name)
    if isinstance(layer, DynamicGroupConv2d):
        heads, (images, labels, _) = layer.heads, one_of_each_class(run.recording, 2)
    else:
        heads, (images, labels) = 1, first_of_each_class(run.data.test, 2)
    inputs, masks = _see(run, layer, images)
    shown = spread_over_heads(layer, outputs)
    values = torch.stack([contributions(layer, x)[shown].cpu() for x in inputs])  # [2, outputs, C]
    kept = masks[:, [output % heads for output in shown]]  # [2, outputs, C]

    figure = new_figure(1.5 * len(shown) + 1.2)
    panels = figure.subplots(len(shown), 3, width_ratios=(1, 5, 5), squeeze=False)
    channels = range(layer.in_channels)
    for row, output in enumerate(shown):
        panels[row, 0].set_axis_off()
        for column, colour in enumerate((BLUE, RED)):
            axes = panels[row, column + 1]
            colours = [colour if keep else "#C9C9C9" for keep in kept[column, row].tolist()]
            axes.bar(channels, values[column, row].tolist(), color=colours, width=1.0)
            axes.axhline(0, color=GREY, lw=0.6)
            largest = 1.1 * float(values[:, row].abs().max())
            axes.set(xlim=(-1, layer.in_channels), ylim=(-largest, largest))
            axes.grid(visible=False)
            axes.tick_params(labelleft=column == 0, labelbottom=row == len(shown) - 1)
            if column == 0:
                of_head = f"\n(head {output % heads + 1})" if run.is_dynamic else ""
                axes.set_ylabel(f"output {output}{of_head}")
            if row == len(shown) - 1:
                axes.set_xlabel("input channel")
            if row == 0:
                axes.set_title(
                    f"image {'AB'[column]}: class {shortened(run.data.classes[labels[column]], CLASS_LETTERS)}"
                )
    for column in range(min(2, len(shown))):
        axes = panels[column, 0]
        show_image(axes, images[column], run.data)
        axes.set_title(f"image {'AB'[column]}")
    entitle(
        figure,
        f"What each input channel gives to {len(shown)} output channels of {name}, on average over the plane\n"
        + (
            "coloured: the channels that the image keeps for this head; grey: those it leaves out"
            if run.is_dynamic
            else f"{run.name}, which computes all of them"
        ),
    )
    return Drawing(
        figure,
        {
            "layer": name,
            "outputs": shown,
            "classes": [run.data.classes[label] for label in labels],
            "contributions": values.tolist(),
            "kept": kept.tolist(),
        },
    )


@torch.no_grad()
def contributions(layer: nn.Conv2d | DynamicGroupConv2d, x: Tensor) -> Tensor:
    """Mean over the plane of each input channel's own convolution, ``[C', C]``; x is one input ``[C, height, width]``.

    Their sum over the input channels is the mean of the undivided convolution's output.
    """
    if isinstance(layer, DynamicGroupConv2d):
        x = layer.padded(x)
    pairs = [
        F.conv2d(x[None, c : c + 1], layer.weight[:, c : c + 1], None, layer.stride, layer.padding, layer.dilation)
        for c in range(layer.in_channels)
    ]
    return torch.stack([out.mean((0, 2, 3)) for out in pairs], dim=1)


def spread_over_heads(layer: nn.Conv2d | DynamicGroupConv2d, outputs: int) -> list[int]:
    """Output channel o belongs to head ``o mod H``."""
    heads = layer.heads if isinstance(layer, DynamicGroupConv2d) else 1
    starts = range(0, layer.out_channels, max(heads, layer.out_channels // outputs // heads * heads))
    return [start + number % heads for number, start in enumerate(starts)][:outputs]


def _pick(run: TrainedRun, name: str | None) -> tuple[str, nn.Conv2d | DynamicGroupConv2d]:
    if run.is_dynamic:
        name = run.pick_layer(name, depth=1 / 2)
        return name, dict(dynamic_layers(run.model))[name]
    plain = {
        path: layer
        for path, layer in run.model.named_modules()
        if type(layer) is nn.Conv2d and layer.groups == 1 and layer.in_channels > 3  # not the first
    }
    if not plain:
        raise UserError(f"needs dynamic layers or undivided convolutions, and {run.name} has neither")
    if name is not None and name not in plain:
        raise unknown_name("convolution", name, plain)
    name = name or list(plain)[len(plain) // 2]
    return name, plain[name]


@torch.no_grad()
def _see(run: TrainedRun, layer: nn.Conv2d | DynamicGroupConv2d, images: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's input ``[N, C, height, width]`` and the channels it keeps ``[N, H, C]``, detached from the network."""
    inputs: list[Tensor] = []
    kept: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda layer, args: inputs.append(args[0]))
    with ExitStack() as stack:
        stack.callback(handle.remove)
        stack.enter_context(passing_overflow())
        if isinstance(layer, DynamicGroupConv2d):
            stack.enter_context(layer.gate.observed_by(lambda saliency, mask: kept.append(mask)))
        run.model(images.to(run.device))
    all_of_them = torch.ones(len(images), 1, layer.in_channels, dtype=torch.bool)
    return inputs[0], kept[0].cpu() if kept else all_of_them
