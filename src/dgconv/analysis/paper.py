"""The MACs the paper reports, each beside what our models cost in both conventions."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from ..cost.macs import count_macs_by_convention
from ..layers import halve_classifier
from ..models import create_model


@dataclass(frozen=True)
class ReportedFigure:
    """One reported figure: millions of MACs, or a saving over the dense model."""

    label: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    reported: float | None = None  # None where the paper has it in a figure only
    saving_over: str | None = None  # reported is a ratio to this model
    fits: str = ""
    change: Callable[[nn.Module], None] | None = None


@dataclass(frozen=True)
class CountedFigure:
    """A row, counted. ``difference`` is in percent of the reported figure, by the convention closer to it."""

    label: str
    reported: str
    paper: float
    authors: float
    paper_saving: float | None
    authors_saving: float | None
    difference: float | None
    fits: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_CIFAR_MOBILENET = {"num_classes": 10, "downsample": (3, 5), "stem_stride": 1, "pruning_rate": 0.65}
ROWS = (
    ReportedFigure("CondenseNet-50-DGC, rate 1/3", "condensenet50_dgc", {"pruning_rate": 1 / 3}, 51, fits="authors"),
    ReportedFigure("CondenseNet-50-DGC, rate 7/8", "condensenet50_dgc", {"pruning_rate": 7 / 8}),
    ReportedFigure("CondenseNet-50-DGC, rate 5/6", "condensenet50_dgc", {"pruning_rate": 5 / 6}),
    ReportedFigure("CondenseNet-50-DGC, rate 3/4", "condensenet50_dgc", {"pruning_rate": 3 / 4}),
    ReportedFigure("CondenseNet-50-DGC, rate 1/2", "condensenet50_dgc", {"pruning_rate": 1 / 2}),
    ReportedFigure(
        "CondenseNet-50 LGC, C = 1 (undivided)", "condensenet50_lgc", {"condensation": 1}, 66, fits="authors",
    ),
    ReportedFigure("CondenseNet-50 LGC, C = 2", "condensenet50_lgc", {"condensation": 2}),
    ReportedFigure("CondenseNet-50 LGC, C = 4", "condensenet50_lgc", {"condensation": 4}),
    ReportedFigure("CondenseNet-86 LGC, C = 4", "condensenet86_lgc", {"condensation": 4}, 65, fits="authors"),
    ReportedFigure("CondenseNet-86-DGC, rate 3/4", "condensenet86_dgc", {}, 71, fits="authors"),
    ReportedFigure("CondenseNet-86-DGC, CIFAR-100", "condensenet86_dgc", {"num_classes": 100}, 71, fits="authors"),
    ReportedFigure("CondenseNet-74 LGC, ImageNet", "condensenet74_lgc", {"condensation": 4}, 529, fits="authors"),
    ReportedFigure(
        "CondenseNet-74 LGC, half classifier", "condensenet74_lgc", {"condensation": 4}, 529,
        fits="authors", change=halve_classifier,
    ),
    ReportedFigure("CondenseNet-74-DGC, rate 3/4", "condensenet74_dgc", {}, 549, fits="authors"),
    ReportedFigure("ResNet-18", "resnet18", reported=1810, fits="both"),
    ReportedFigure(
        "ResNet-18-DGC, rate 0.55", "resnet18_dgc", {"pruning_rate": 0.55, "pre_norm": True}, 2.04,
        saving_over="resnet18", fits="both",
    ),
    ReportedFigure(
        "ResNet-18-DGC, rate 0.75, as in the text", "resnet18_dgc", {"pruning_rate": 0.75, "pre_norm": True}, 2.04,
        saving_over="resnet18", fits="neither",
    ),
    ReportedFigure("MobileNetV2", "mobilenetv2", reported=300, fits="paper"),
    ReportedFigure(
        "MobileNetV2-DGC, rate 0.75, d = 16", "mobilenetv2_dgc", {"pruning_rate": 0.75, "squeeze": 16}, 245,
        fits="neither",
    ),
    ReportedFigure("MobileNetV2-DGC, rate 0.55, d = 4", "mobilenetv2_dgc", {}, 245, fits="paper (fit)"),
    ReportedFigure(
        "MobileNetV2-DGC-1, CIFAR, d = 16", "mobilenetv2_dgc", _CIFAR_MOBILENET | {"squeeze": 16}, 155,
        fits="neither",
    ),
    ReportedFigure(
        "MobileNetV2-DGC-1, CIFAR, d = 4", "mobilenetv2_dgc", _CIFAR_MOBILENET, 155,
        fits="paper (fit)",
    ),
)  # fmt: skip


def compare_with_paper() -> list[CountedFigure]:
    """Count every row; in millions of MACs."""
    dense = {name: _count(create_model(name)) for name in {row.saving_over for row in ROWS if row.saving_over}}
    return [_compare(row, dense) for row in ROWS]


def _compare(row: ReportedFigure, dense: dict[str, dict[str, float]]) -> CountedFigure:
    model = create_model(row.model, **row.options)
    if row.change:
        row.change(model)
    macs = _count(model)
    saving = {key: dense[row.saving_over][key] / macs[key] for key in macs} if row.saving_over else None
    difference = None
    if row.reported is not None:
        figures = saving or macs
        difference = min((100 * (figure / row.reported - 1) for figure in figures.values()), key=abs)
    unit = "x" if row.saving_over else "M"
    return CountedFigure(
        label=row.label,
        reported=f"{row.reported:g}{unit}" if row.reported is not None else "in a figure",
        paper=macs["paper"],
        authors=macs["authors"],
        paper_saving=saving["paper"] if saving else None,
        authors_saving=saving["authors"] if saving else None,
        difference=difference,
        fits=row.fits,
    )


def _count(model: nn.Module) -> dict[str, float]:
    return {convention: count.macs / 1e6 for convention, count in count_macs_by_convention(model).items()}
