"""Draws docs/layer.svg: one image passing through a dynamic group convolution with two heads.

    python docs/draw_layer.py

The saliencies and the choices in the picture are those of a real layer on a real image of the digits.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from dgconv import DynamicGroupConv2d
from dgconv.data import load_data

HEADS = ("#0072B2", "#D55E00")  # colour-blind safe
KEPT_EDGE, GREY, INK = "#222222", "#d9d9d9", "#222222"
CHANNELS = 8


def choose() -> tuple[torch.Tensor, torch.Tensor]:
    """Saliencies and kept channels of one digit, each [2, 8]."""
    torch.manual_seed(4)
    image = next(iter(load_data("digits").test.batches(1, train=False)))[0]
    x = torch.nn.Conv2d(3, CHANNELS, 3)(image).relu()
    layer = DynamicGroupConv2d(CHANNELS, CHANNELS, 3, heads=2, pruning_rate=0.625, squeeze=2)
    with torch.no_grad():
        layer.generator.bias.copy_(1 + 0.6 * torch.randn(2, CHANNELS))
        saliency = layer.generator(x)
    return saliency[0], layer.gate.mask(saliency)[0]


def arrow(axes: plt.Axes, start: tuple[float, float], end: tuple[float, float], color: str = INK) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=color, lw=1.4))


def stack(axes: plt.Axes, x: float, y: float, colors: list[str], size: float = 0.52) -> None:
    """Feature maps, one over the other."""
    for index, color in enumerate(colors):
        low = y + (len(colors) - 1 - index) * size
        axes.add_patch(Rectangle((x, low), 1.1, size * 0.86, facecolor=color, edgecolor=KEPT_EDGE, lw=0.8))


def main() -> None:
    saliency, kept = choose()
    figure, axes = plt.subplots(figsize=(10.5, 4.6))
    axes.set_xlim(-0.2, 17.0)
    axes.set_ylim(-0.9, 6.9)
    axes.axis("off")

    stack(axes, 0, 0.8, ["#9aa5b1"] * CHANNELS)
    axes.text(0.55, 5.25, "x: C = 8 channels", ha="center", fontsize=10)
    greatest = float(saliency.max())
    for head, (color, base) in enumerate(zip(HEADS, (3.7, -0.1), strict=True)):
        axes.add_patch(FancyBboxPatch((2.6, base), 1.9, 1.9, boxstyle="round,pad=0.08", fc="white", ec=color, lw=1.6))
        axes.text(3.55, base + 0.95, f"head {head + 1}\npool, W₁, W₂", ha="center", va="center", fontsize=9.5)
        arrow(axes, (1.25, 2.9), (2.5, base + 0.95), color)
        for channel in range(CHANNELS):
            height = 1.7 * float(saliency[head, channel]) / greatest
            fill = color if kept[head, channel] else GREY
            axes.add_patch(Rectangle((5.5 + 0.33 * channel, base + 0.1), 0.25, height, facecolor=fill))
        arrow(axes, (4.65, base + 0.95), (5.35, base + 0.95), color)
        axes.text(6.8, base + 2.1, f"saliency g{'¹²'[head]}, best 3 kept", ha="center", fontsize=9.5, color=INK)
        stack(axes, 9.1, base + 0.25, [color] * int(kept[head].sum()), size=0.5)
        names = ", ".join(str(c + 1) for c in kept[head].nonzero().flatten().tolist())
        axes.text(9.65, base + 1.95, f"x·g of {names}", ha="center", fontsize=9.5)
        arrow(axes, (8.25, base + 0.95), (8.95, base + 0.95), color)
        axes.add_patch(
            FancyBboxPatch((11.4, base + 0.3), 1.6, 1.3, boxstyle="round,pad=0.08", fc="white", ec=color, lw=1.6)
        )
        axes.text(12.2, base + 0.95, "convolve\nthese only", ha="center", va="center", fontsize=9.5)
        arrow(axes, (10.35, base + 0.95), (11.25, base + 0.95), color)
        arrow(axes, (13.2, base + 0.95), (14.6, 2.9), color)
    stack(axes, 14.8, 0.8, [HEADS[channel % 2] for channel in range(CHANNELS)])
    axes.text(15.35, 5.25, "out: head h owns\nchannels h, h+H, ...", ha="center", fontsize=10)
    target = Path(__file__).parent / "layer.svg"
    plt.rcParams["svg.hashsalt"] = "dgconv"
    figure.savefig(target, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    print(target.name)


if __name__ == "__main__":
    main()
