"""How alike the channels are that two images keep: of the same class, of different ones, and by chance.

Likeness is the Jaccard index, channels both keep over channels either keeps, head by head. The baseline for chance
chooses as many channels as each image does, anywhere. A layer in which no image keeps anything has no index.
"""

import math

import torch
from torch import Tensor

from ...errors import UserError
from ..run_folder import RunFolder
from .style import BLUE, GREY, ORANGE, Drawing, entitle, in_house_style, new_figure


@in_house_style
def draw_similarity(run: RunFolder, seed: int = 0) -> Drawing:
    recording = run.recording
    labels = recording.example_labels
    same_class = labels[:, None] == labels[None]
    pairs = torch.ones_like(same_class).triu(diagonal=1)
    same, other = pairs & same_class, pairs & ~same_class
    if not same.any() or not other.any():
        raise UserError("needs examples of the same class and of different ones; record more examples")
    generator = torch.Generator().manual_seed(seed)
    curves: dict[str, list[float]] = {"same_class": [], "other_classes": [], "chance": []}
    for layer in recording.layers.values():
        likeness = jaccard(layer.example_masks)
        curves["same_class"].append(_mean(likeness, same))
        curves["other_classes"].append(_mean(likeness, other))
        curves["chance"].append(_mean(jaccard(shuffled(layer.example_masks, generator)), pairs))
    means = {name: float(torch.tensor(values).nanmean()) for name, values in curves.items()}

    figure = new_figure(3.3)
    axes = figure.subplots()
    places = range(1, len(recording.layers) + 1)
    looks = {
        "same_class": ("o-", BLUE, "same class"),
        "other_classes": ("s-", ORANGE, "different classes"),
        "chance": ("--", GREY, "by chance"),
    }
    for name, (style, colour, label) in looks.items():
        axes.plot(places, curves[name], style, color=colour, label=f"{label}: {means[name]:.3f} on average")
    axes.fill_between(places, curves["other_classes"], curves["same_class"], color=BLUE, alpha=0.12, lw=0)
    axes.set(xlabel="dynamic layer, from the input on", ylabel="Jaccard index of the kept channels", ylim=(0, 1.02))
    if len(places) <= 24:
        axes.set_xticks(places)
    figure.legend(loc="outside lower center", ncols=3)
    entitle(
        figure, f"How many of their channels do two images share? {run.name}\nevery two of {len(labels)} test images"
    )
    return Drawing(
        figure,
        {
            "layers": list(recording.layers),
            "images": len(labels),
            "pairs": {"same_class": int(same.sum()), "other_classes": int(other.sum())},
            **{name: [None if math.isnan(value) else value for value in values] for name, values in curves.items()},
            "mean": means,
        },
    )


def jaccard(masks: Tensor) -> Tensor:
    """Of masks ``[N, H, C]``: the index of each two images, its mean over the heads that keep any, ``[N, N]``."""
    by_head = masks.double().transpose(0, 1)  # [H, N, C]
    both = by_head @ by_head.mT
    sizes = by_head.sum(2)
    either = sizes[:, :, None] + sizes[:, None] - both
    return (both / either).nanmean(0)


def shuffled(masks: Tensor, generator: torch.Generator) -> Tensor:
    """As many channels in every image and head, at random places."""
    order = torch.rand(masks.shape, generator=generator).argsort(-1)
    return masks.gather(-1, order)


def _mean(likeness: Tensor, pairs: Tensor) -> float:
    return float(likeness[pairs].nanmean())
