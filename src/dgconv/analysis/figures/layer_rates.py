"""What each layer really prunes under one global threshold, and the network as a whole (the appendix's figure)."""

from ...errors import UserError
from ..trained_run import TrainedRun
from .style import BLUE, GREY, RED, Drawing, entitle, in_house_style, new_figure

MANY_IMAGES = (0.05, 0.95)  # the range that nine of ten images stay in


@in_house_style
def draw_layer_rates(run: TrainedRun) -> Drawing:
    if not run.has_global_gate:
        raise UserError("needs a network with the global gate (_dgcg): with head-wise gates all layers prune alike")
    recording = run.recording
    layers = list(recording.layers.values())
    rates = [layer.pruned_share for layer in layers]
    spread = [  # between images
        (1 - layer.example_masks.double().mean((1, 2))).quantile(layer.saliency_sum.new_tensor(MANY_IMAGES)).tolist()
        for layer in layers
    ]
    figure = new_figure(3.2)
    axes = figure.subplots()
    places = range(1, len(layers) + 1)
    axes.bar(places, rates, color=BLUE, width=0.75, label="over all images")
    axes.vlines(places, *zip(*spread, strict=True), color="black", lw=1.2, label="nine of ten images lie here")
    axes.axhline(recording.pruned_share, color=RED, label=f"the whole network: {recording.pruned_share:.3f}")
    axes.axhline(run.trained_rate, color=GREY, ls="--", label=f"target: {run.trained_rate:.3f}")
    axes.set(
        xlabel="dynamic layer, from the input on", ylabel="pruning rate", ylim=(0, 1), xlim=(0.3, len(layers) + 0.7)
    )
    if len(layers) <= 24:
        axes.set_xticks(places)
    axes.grid(axis="x", visible=False)
    figure.legend(loc="outside lower center", ncols=4)
    entitle(figure, f"What each layer of {run.name} leaves out, one threshold for all of them")
    return Drawing(
        figure,
        {
            "layers": [layer.name for layer in layers],
            "pruning_rate": rates,
            "images_5_95": spread,
            "overall": recording.pruned_share,
            "target": run.trained_rate,
        },
    )
