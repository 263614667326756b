"""Where the time of a deployed network goes, in one call on this CPU."""

import torch

from ...deploy import prepare
from ...deploy.run.timing import median_split
from ...environment import describe_environment
from ...errors import UserError
from ...layers.select import dynamic_layers
from ..trained_run import TrainedRun
from .style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, Drawing, entitle, in_house_style, new_figure

NAMES = {
    "pool": ("pooling of each channel", SKY),
    "generator": ("saliency generators", ORANGE),
    "select": ("choosing the channels", RED),
    "convolution": ("convolutions, static and dynamic", BLUE),
    "other": ("everything else", GREY),
    "torch": ("steps left to torch", PURPLE),
}
REPEATS = 15


@in_house_style
def draw_time_split(run: TrainedRun, batch_size: int = 1, repeats: int = REPEATS) -> Drawing:
    model = run.model_on_cpu
    if not any(True for _ in dynamic_layers(model)):
        raise UserError("needs a network with dynamic layers")
    images = next(iter(run.data.test.batches(batch_size, train=False)))[0]
    parts = median_split(prepare(model), images, repeats)
    total = sum(parts.values())

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
    entitle(figure, f"Where the time of {run.name} goes once it is prepared\n{machine['hardware']}")
    return Drawing(
        figure,
        {"seconds": parts, "total": total, "batch_size": batch_size, "repeats": repeats, "environment": machine},
    )
