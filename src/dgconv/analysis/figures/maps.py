"""Saliencies and kept channels of several images, at shallow and deep layers (the paper's seventh figure)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..recording import LayerRecord
from ..trained_run import TrainedRun
from ._images import one_of_each_class, shortened, show_image
from ._layers import DEEP, SHALLOW, of_block, titled
from .style import SALIENCY_MAP, Drawing, entitle, in_large_type, new_figure

LAYERS_A_BLOCK = 4
CHANNELS = 64
CLASSES, OF_EACH = 3, 2
CLASS_LETTERS = 11  # that fit beside an image


@in_large_type
def draw_maps(run: TrainedRun, classes: int = CLASSES, of_each: int = OF_EACH, blocks: Sequence[range] = ()) -> Drawing:
    """Each row an image; in each map a row for every head of every layer, a column for every channel.

    Args:
        blocks: numbers of the layers to show, from 1 on; default those of the paper, or else the first and the last.
    """
    recording = run.recording
    images, labels, places = one_of_each_class(recording, classes, of_each)
    layers = list(recording.layers.values())
    shown = {titled(block): block for block in blocks} or _shallow_and_deep(len(layers))
    by_title = {title: of_block(layers, block) for title, block in shown.items()}
    numbers: dict[str, Any] = {
        "classes": [run.data.classes[label] for label in labels],
        "layers": {title: [layer.name for layer in members] for title, members in by_title.items()},
    }

    figure = new_figure(0.6 + 1.2 * len(images) + 0.7)
    widths = (1, *(2,) * 2 * len(shown))
    panels = figure.subplots(len(images), len(widths), width_ratios=widths, squeeze=False)
    for index, (title, members) in enumerate(by_title.items()):
        saliencies, masks = stacked(members, places)
        probability = masks.float().mean(0)
        numbers[title] = {
            "kept_share": masks.float().mean((1, 2)).tolist(),
            "channels_disputed": float(((probability > 0) & (probability < 1)).float().mean()),
        }
        for row in range(len(images)):
            saliency_panel, mask_panel = panels[row, 1 + 2 * index], panels[row, 2 + 2 * index]
            shade = saliency_panel.imshow(saliencies[row], cmap=SALIENCY_MAP, vmin=0, vmax=1, aspect="auto")
            mask_panel.imshow(masks[row], cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            for axes in (saliency_panel, mask_panel):
                axes.set_xticks([])
                axes.set_yticks([])
                axes.grid(visible=False)
                axes.spines[:].set_visible(True)
                heads = members[0].heads
                for border in range(heads, heads * len(members), heads):
                    axes.axhline(border - 0.5, color="#D55E00", lw=0.7)
        which = title if blocks else f"{title} ({titled(shown[title])})"
        panels[0, 1 + 2 * index].set_title(f"{which}:\nsaliency")
        panels[0, 2 + 2 * index].set_title("\nkept channels, white")
        for panel in (panels[-1, 1 + 2 * index], panels[-1, 2 + 2 * index]):
            panel.set_xlabel(f"the first {masks.shape[2]} channels")
    for row, label in enumerate(labels):
        show_image(panels[row, 0], images[row], run.data)
        panels[row, 0].set_ylabel(f"class\n{shortened(run.data.classes[label], CLASS_LETTERS)}")
    bar = figure.colorbar(shade, ax=panels[:, 1:], location="bottom", shrink=0.4, aspect=40, pad=0.01)
    bar.set_label("saliency, as a share of the largest in its layer")
    bar.outline.set_visible(False)
    of_which = {title: f"those of {title}" if blocks else f"the {title}" for title in shown}
    disputed = " and ".join(f"{numbers[title]['channels_disputed']:.0%} of {of_which[title]}" for title in shown)
    entitle(
        figure,
        f"Which channels each image chooses in {run.name}\n"
        f"a row for each head; the images disagree about {disputed} channels",
    )
    return Drawing(figure, numbers)


def _shallow_and_deep(count: int) -> dict[str, range]:
    if count >= DEEP.stop - 1:
        return {"shallow": SHALLOW, "deep": DEEP}
    each = max(1, min(LAYERS_A_BLOCK, count // 2))
    return {"shallow": range(1, 1 + each), "deep": range(count - each + 1, count + 1)}


def stacked(layers: list[LayerRecord], places: list[int]) -> tuple[Tensor, Tensor]:
    """Stacks some images: saliencies, scaled to 1 in each layer, and masks, ``[images, layers * heads, channels]``."""
    columns = min(CHANNELS, *(layer.channels for layer in layers))
    saliencies, masks = [], []
    for layer in layers:
        scale = layer.example_saliencies[places].abs().max().clamp(min=1e-12)
        saliencies.append(layer.example_saliencies[places, :, :columns].abs() / scale)
        masks.append(layer.example_masks[places, :, :columns])
    return torch.cat(saliencies, 1), torch.cat(masks, 1)
