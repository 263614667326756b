"""How often each channel is left out, head by head; jumping and freezing channels told apart (eighth figure)."""

import torch

from ..trained_run import TrainedRun
from ._layers import FOLLOWED, of_block
from .style import GREY, SERIES, Drawing, entitle, in_house_style, new_figure


@in_house_style
def draw_probabilities(run: TrainedRun, layer_name: str | None = None, number: int | None = None) -> Drawing:
    """
    Args:
        layer_name: a dynamic layer; default the one that the paper follows, or else a deep one.
        number: instead, which one it is, from 1 on.
    """
    recording = run.recording
    if number is None and layer_name is None and len(recording.layers) >= FOLLOWED:
        number = FOLLOWED
    if number is not None:
        (layer_name,) = of_block(list(recording.layers), range(number, number + 1))
    name = run.pick_layer(layer_name, depth=3 / 4)
    layer = recording.layers[name]
    probability = layer.pruning_probability  # [H, C]
    never, always = layer.kept == layer.images, layer.kept == 0
    jumping = ~(never | always)

    figure = new_figure(0.9 + 1.25 * layer.heads)
    panels = figure.subplots(layer.heads, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    channels = torch.arange(layer.channels)
    heads = []
    for head, axes in enumerate(panels):
        colour = SERIES[head % len(SERIES)]
        moves = jumping[head]
        axes.vlines(channels[moves], 0, probability[head][moves], color=colour, lw=0.8, alpha=0.5)
        axes.plot(channels[moves], probability[head][moves], "o", ms=3, color=colour, label="jumping")
        axes.plot(channels[always[head]], probability[head][always[head]], "x", ms=3, color=GREY, label="always out")
        axes.plot(channels[never[head]], probability[head][never[head]], "_", ms=4, color="black", label="always kept")
        counts = {
            "jumping": int(moves.sum()),
            "always_out": int(always[head].sum()),
            "always_kept": int(never[head].sum()),
        }
        heads.append(counts)
        axes.set(ylim=(-0.08, 1.08), yticks=(0, 0.5, 1), ylabel="probability")
        axes.set_title(
            f"head {head + 1}: {counts['jumping']} channels jump, {counts['always_out']} are always left out, "
            f"{counts['always_kept']} always kept"
        )
        axes.grid(axis="x", visible=False)
    panels[-1].set_xlabel("input channel")
    panels[-1].set_xlim(-1, layer.channels)
    figure.legend(*_legend(), loc="outside lower center", ncols=3)
    entitle(
        figure,
        f"How often each channel is left out: {name} of {run.name}\n"
        f"share of {layer.images:,} test images; {float(jumping.double().mean()):.0%} of the channels jump",
    )
    return Drawing(
        figure,
        {
            "layer": name,
            "images": layer.images,
            "heads": heads,
            "pruning_probability": probability.tolist(),
            "pruned_share": layer.pruned_share,
            "jumping_share": float(jumping.double().mean()),
            "jumping_share_by_layer": {
                one.name: float(((one.kept > 0) & (one.kept < one.images)).double().mean())
                for one in recording.layers.values()
            },
        },
    )


def _legend() -> tuple[list, list[str]]:
    from matplotlib.lines import Line2D

    marks = [("o", SERIES[0]), ("x", GREY), ("_", "black")]
    handles = [Line2D([], [], ls="", marker=marker, color=colour) for marker, colour in marks]
    return handles, [
        "jumping: depends on the image",
        "freezing: every image leaves it out",
        "freezing: every image keeps it",
    ]
