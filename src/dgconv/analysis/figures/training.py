"""The training process: learning rate, pruned share and loss over the epochs (the paper's third figure)."""

from typing import Any

from ...train.schedule import WARM_UP_END
from ..trained_run import TrainedRun
from .style import BLUE, GREEN, ORANGE, RED, Drawing, entitle, in_house_style, new_figure

SHADES = ("#F3F3F3", "#E3EEF7", "#FDF1DC")


@in_house_style
def draw_training(run: TrainedRun) -> Drawing:
    metrics, recipe, training = run.metrics, run.recipe, run.recipe.training
    epochs = [line["epoch"] for line in metrics]
    has_stages = run.is_dynamic
    heights = (3, 2, 2) if has_stages else (3, 2)
    figure = new_figure(0.8 * sum(heights))
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    loss, rate = panels[0], panels[-1]

    def curve(axes: Any, key: str, label: str, colour: str, style: str = "-") -> None:
        values = [line.get(key) for line in metrics]
        axes.plot(epochs, values, style, color=colour, label=label, marker="o" if len(epochs) < 8 else None)

    curve(loss, "train_loss", "training images", BLUE)
    curve(loss, "test_loss", "test images", ORANGE)
    loss.set(ylabel="cross-entropy, log scale", title="Loss", yscale="log")
    loss.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    curve(rate, "learning_rate", "learning rate", GREEN)
    rate.set(ylabel="learning rate", xlabel="epoch", title="Learning rate, half a cosine")
    rate.set_ylim(bottom=0)
    stages: list[dict[str, Any]] = []
    if has_stages:
        share = panels[1]
        curve(share, "pruned_share", "measured on the test images", RED)
        curve(share, "target_pruned_share", "schedule", "black", "--")  # above what follows it closely
        stages = [
            {"name": "warm-up", "from": 0.0, "to": WARM_UP_END * training.epochs},
            {
                "name": "gradual pruning",
                "from": WARM_UP_END * training.epochs,
                "to": training.ramp_end * training.epochs,
            },
            {"name": "fine-tuning", "from": training.ramp_end * training.epochs, "to": float(training.epochs)},
        ]
        share.set(ylabel="pruned share", ylim=(0, 1), title="Share of the channels left out")
    for axes in panels:
        for stage, shade in zip(stages, SHADES, strict=False):
            axes.axvspan(stage["from"], stage["to"], color=shade, lw=0, zorder=-2)
        axes.grid(axis="x", visible=False)
        axes.set_xlim(0, training.epochs)
    for stage in stages:
        middle = (stage["from"] + stage["to"]) / 2
        narrow = stage["to"] - stage["from"] < 0.15 * training.epochs
        share.text(
            middle, 0.96, stage["name"], transform=share.get_xaxis_transform(), ha="center", va="top",
            rotation=90 if narrow else 0, color="#444444",
        )  # fmt: skip
    for axes in panels[:-1]:  # beside the title: no other place is free of every curve
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, ncols=2)
    when = "at the end" if epochs[-1] == training.epochs else f"after epoch {epochs[-1]} of {training.epochs}"
    entitle(figure, f"Training of {recipe.title}: test error {metrics[-1]['test_error']:.2f} % {when}")
    keys = ("learning_rate", "target_pruned_share", "pruned_share", "train_loss", "test_loss", "test_error")
    return Drawing(
        figure, {"epoch": epochs, "stages": stages, **{key: [line.get(key) for line in metrics] for key in keys}}
    )
