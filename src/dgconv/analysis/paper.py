"""The MACs of every row of the paper's tables, and of the points of its figures, beside what our models cost."""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ..cost.macs import count_macs_by_convention
from ..layers import FullyLearnableGroupConv2d, halve_classifier
from ..layers.method import layer_methods
from ..models import create_model
from ..pruning import attach_pruning, what_will_be_left


@dataclass(frozen=True)
class Pruned:
    """How a network is pruned: at a rate, or without one at that which comes nearest to the reported MACs."""

    method: str
    rate: float | None = None


@dataclass(frozen=True)
class ReportedFigure:
    """One reported figure: millions of MACs, or a saving over the dense model."""

    label: str
    model: str
    recipe: str  # that trains it, or the pattern of those for several data sets; also of another reading of its figures
    options: dict[str, Any] = field(default_factory=dict)
    reported: float | None = None  # None where the paper has it in a figure only
    saving_over: str | None = None  # reported is a ratio to this model
    fits: str = ""
    change: Callable[[nn.Module], None] | None = None
    pruned: Pruned | None = None
    where: str = ""


@dataclass(frozen=True)
class CountedFigure:
    """A row, counted. ``difference`` is in percent of the reported figure, by the convention closer to it."""

    where: str
    label: str
    reported: str
    paper: float
    authors: float
    paper_saving: float | None
    authors_saving: float | None
    difference: float | None
    fits: str
    recipe: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _layers(last: int, skipped: set[int], first: int = 2) -> list[int]:
    """The numbers of the first convolutions of blocks, the stem being layer 1, as in Li et al. 2016."""
    return [layer for layer in range(first, last + 1, 2) if layer not in skipped]


def _narrow_blocks(stage_depth: int, kept: dict[int, tuple[int, int]]) -> dict[str, list[int]]:
    """Widths of a ResNet's layers where the first convolution of a block has fewer filters.

    ``kept`` says of a layer's number how many of how many filters are kept.
    """
    widths: dict[str, list[int]] = {}
    for layer, (filters, of) in kept.items():
        stage, block = divmod((layer - 2) // 2, stage_depth)
        inputs = of // 2 if block == 0 and stage > 0 else of
        name = f"layer{stage + 1}.{block}"
        widths |= {f"{name}.conv1": [filters, inputs], f"{name}.bn1": [filters], f"{name}.conv2": [of, filters]}
    return widths


def _narrow_vgg(kept: dict[int, int], convs: tuple[int, ...] = (2, 2, 3, 3, 3)) -> dict[str, list[int]]:
    """Widths of VGG-16's layers; ``kept`` says of a convolution's number, from 1, how many filters are kept."""
    full = [64 * times for stage, times in zip(convs, (1, 2, 4, 8, 8), strict=True) for _ in range(stage)]
    counts = [kept.get(number, filters) for number, filters in enumerate(full, start=1)]
    widths, inputs, at = dict[str, list[int]](), 3, 0
    for stage in convs:
        for _ in range(stage):
            outputs = counts.pop(0)
            widths |= {f"features.{at}": [outputs, inputs], f"features.{at + 1}": [outputs]}
            inputs, at = outputs, at + 3
        at += 1  # the pooling
    return widths | {"classifier": [10, inputs]}


LI_RESNET56 = _narrow_blocks(
    9,
    dict.fromkeys(_layers(18, {16, 18}), (6, 16))
    | dict.fromkeys(_layers(36, {20, 34}, 20), (22, 32))
    | dict.fromkeys(_layers(54, {38, 54}, 38), (57, 64)),
)
LI_RESNET110 = _narrow_blocks(18, dict.fromkeys(_layers(36, {36}), (8, 16)))
LI_VGG16 = _narrow_vgg({1: 32} | dict.fromkeys(range(8, 14), 256))

FOUND = "a value found for it"
PUBLISHED = "the published rates"

_CIFAR_MOBILENET: dict[str, Any] = {"num_classes": 10, "downsample": (3, 5), "stem_stride": 1}
_DGC_1 = _CIFAR_MOBILENET | {"pruning_rate": 0.65}
_NARROW: dict[str, Any] = {"pruning_rate": 0.65, "width": 0.75}
_TABLE_2, _TABLE_3, _FIGURE_4, _FIGURE_5, _FIGURE_6 = "Table 2", "Table 3", "Figure 4", "Figure 5", "Figure 6"


def _row(
    where: str, label: str, recipe: str, reported: float | None = None, model: str | None = None, **more: Any
) -> ReportedFigure:
    """A row whose network is that of its recipe, if no other is named."""
    fields = {name: more.pop(name) for name in ("fits", "change", "pruned", "saving_over") if name in more}
    _, backbone, *rest = recipe.split("_")
    own = f"{backbone}_{rest[0]}" if rest and rest[0] in layer_methods() else backbone
    return ReportedFigure(label, model or own, recipe, more, reported, where=where, **fields)


def _resnet(label: str, method: str, reported: float, **more: Any) -> ReportedFigure:
    return _row("Table 1", label, f"imagenet_resnet18_{method}", reported, saving_over="resnet18", **more)


ROWS = (
    _row("Table 1", "ResNet-18", "imagenet_resnet18", 1810, fits="both"),
    _resnet("SFP, rate 0.3", "sfp", 1.72, pruned=Pruned("sfp", 0.3), fits=PUBLISHED),
    _resnet("NS", "ns", 1.39, pruned=Pruned("ns", 0.3096), fits=FOUND),
    _resnet("DCP", "dcp", 1.89, pruned=Pruned("dcp"), fits=FOUND),
    _resnet("FPGM", "fpgm", 1.53, pruned=Pruned("fpgm"), fits=FOUND),
    _resnet("FPGM, rate 0.3", "fpgm", 1.53, pruned=Pruned("fpgm", 0.3), fits="neither: it saves what SFP does"),
    _resnet("LCCN, 0.514 open", "lccn", 1.53, open_share=0.514, fits=FOUND),
    _resnet("FBS, density 0.467", "fbs", 1.98, density=0.467, fits=f"{FOUND}; skipped inputs not counted"),
    _resnet("CGNet, target 0.6", "cgnet", 2.03, target=0.6, fits=FOUND),
    _resnet("ResNet-18-DGC, rate 0.55", "dgc", 2.04, pruning_rate=0.55, pre_norm=True, fits="both"),
    _resnet("ResNet-18-DGC, rate 0.75, as in the text", "dgc", 2.04, pruning_rate=0.75, pre_norm=True, fits="neither"),
    _resnet(
        "ResNet-18-DGC, rate 0.75, shortcuts dense", "dgc", 2.04,
        pruning_rate=0.75, pre_norm=True, shortcuts="dense", fits="neither",
    ),
    _resnet("ResNet-18-DGC-G, rate 0.56", "dgcg", 2.08, pruning_rate=0.56, pre_norm=True, fits=FOUND),
    _row(_TABLE_2, "MobileNetV1", "imagenet_mobilenetv1", 569, fits="paper"),
    _row(_TABLE_2, "ShuffleNet, group 3, 2x", "imagenet_shufflenet", 524, fits="paper"),
    _row(_TABLE_2, "NASNet-A (N=4)", "imagenet_nasneta", 564, fits="paper"),
    _row(_TABLE_2, "NASNet-B (N=4)", "imagenet_nasnetb", 488, fits="operations chosen for it"),
    _row(_TABLE_2, "NASNet-C (N=3)", "imagenet_nasnetc", 558, fits="operations chosen for it"),
    _row(_TABLE_2, "IGCV3-D", "imagenet_igcv3", 318, fits="authors"),
    _row(_TABLE_2, "MobileNetV2", "imagenet_mobilenetv2", 300, fits="paper"),
    _row(_TABLE_2, "CondenseNet-74 LGC, ImageNet", "imagenet_condensenet74_lgc", 529, condensation=4, fits="authors"),
    _row(
        _TABLE_2, "CondenseNet-74 LGC, half classifier", "imagenet_condensenet74_lgc", 529,
        condensation=4, change=halve_classifier, fits="authors",
    ),
    _row(_TABLE_2, "CondenseNet-74 SGC", "imagenet_condensenet74_sgc", 529, groups=4, fits="authors"),
    _row(_TABLE_2, "CondenseNet-74 FLGC, even groups", "imagenet_condensenet74_flgc", 529, groups=4, fits="authors"),
    _row(
        _TABLE_2, "MobileNetV2-DGC, rate 0.75, d = 16", "imagenet_mobilenetv2_dgc", 245,
        pruning_rate=0.75, squeeze=16, fits="neither",
    ),
    _row(_TABLE_2, "MobileNetV2-DGC, rate 0.55, d = 4", "imagenet_mobilenetv2_dgc", 245, fits="paper (fit)"),
    _row(_TABLE_2, "CondenseNet-74-DGC, rate 3/4", "imagenet_condensenet74_dgc", 549, fits="authors"),
    _row(
        _TABLE_2, "CondenseNet-74-DGC-G, rate 0.756", "imagenet_condensenet74_dgcg", 543,
        pruning_rate=0.756, fits=FOUND,
    ),
    _row(_TABLE_3, "VGG-16, Li 2016", "cifar*_vgg16_l1", 206, widths=LI_VGG16, fits=PUBLISHED),
    _row(_TABLE_3, "VGG-19, NS, CIFAR-10", "cifar10_vgg19_ns", 195, pruned=Pruned("ns", 0.3008), fits=FOUND),
    _row(
        _TABLE_3, "VGG-19, NS, CIFAR-100", "cifar100_vgg19_ns", 250,
        num_classes=100, pruned=Pruned("ns", 0.2097), fits=FOUND,
    ),
    _row(_TABLE_3, "ResNet-56, He 2017", "cifar10_resnet56_cp", 62, pruned=Pruned("cp"), fits=FOUND),
    _row(
        _TABLE_3, "ResNet-56, Li 2016", "cifar10_resnet56_l1", 90,
        widths=LI_RESNET56, fits=f"{PUBLISHED}, with 90.9M",
    ),
    _row(_TABLE_3, "ResNet-56, layers alike", "cifar10_resnet56_l1", 90, pruned=Pruned("l1"), fits=FOUND),
    _row(_TABLE_3, "ResNet-110, Li 2016", "cifar10_resnet110_l1", 213, widths=LI_RESNET110, fits=PUBLISHED),
    _row(_TABLE_3, "ResNet-110, FPGM", "cifar10_resnet110_fpgm", 121, pruned=Pruned("fpgm"), fits=FOUND),
    _row(_TABLE_3, "ResNet-164-B, NS", "cifar*_resnet164_ns", 124, pruned=Pruned("ns", 0.3359), fits=FOUND),
    _row(_TABLE_3, "DenseNet-40, NS", "cifar*_densenet40_ns", 190, pruned=Pruned("ns", 0.3455), fits=FOUND),
    _row(_TABLE_3, "DenseNet-40, GAL", "cifar10_densenet40_gal", 183, pruned=Pruned("gal"), fits=FOUND),
    _row(_TABLE_3, "DenseNet-40, GAL, less", "cifar10_densenet40_gal_budget29", 81, pruned=Pruned("gal"), fits=FOUND),
    _row(_TABLE_3, "CondenseNet-86 LGC, C = 4", "cifar*_condensenet86_lgc", 65, condensation=4, fits="authors"),
    _row(_TABLE_3, "CondenseNet-86-DGC, rate 3/4", "cifar10_condensenet86_dgc", 71, fits="authors"),
    _row(_TABLE_3, "CondenseNet-86-DGC, CIFAR-100", "cifar100_condensenet86_dgc", 71, num_classes=100, fits="authors"),
    _row(_TABLE_3, "CondenseNet-86-DGC-G, rate 3/4", "cifar*_condensenet86_dgcg", 71, fits="authors"),
    *(
        _row(_FIGURE_4, f"MobileNetV2 {title}, {groups} groups", f"cifar10_mobilenetv2_{title.lower()}_groups{groups}",
             reported, groups=groups, **_CIFAR_MOBILENET, fits="paper" if reported else "")
        for title in ("SGC", "FLGC")
        for groups, reported in ((2, 158 if title == "FLGC" else None), (4, None), (8, None))
    ),
    _row(
        _FIGURE_4, "MobileNetV2-DGC-1, CIFAR, d = 16", "cifar10_mobilenetv2_dgc_1", 155,
        **_DGC_1, squeeze=16, fits="neither",
    ),
    _row(_FIGURE_4, "MobileNetV2-DGC-1, CIFAR, d = 4", "cifar10_mobilenetv2_dgc_1", 155, **_DGC_1, fits="paper (fit)"),
    _row(_FIGURE_4, "MobileNetV2-DGC-2", "cifar10_mobilenetv2_dgc_2", **_CIFAR_MOBILENET, **_NARROW),
    _row(
        _FIGURE_4, "MobileNetV2-DGC-3", "cifar10_mobilenetv2_dgc_3",
        num_classes=10, downsample=(2, 4), stem_stride=1, **_NARROW,
    ),
    *(
        _row(_FIGURE_5, f"CondenseNet-50-DGC, rate {label}", f"cifar*_condensenet50_dgc{suffix}",
             reported, pruning_rate=rate, fits="authors" if reported else "")
        for label, suffix, rate, reported in (
            ("0", "_rate0", 0.0, None), ("1/3", "_rate33", 1 / 3, 51), ("1/2", "_rate50", 1 / 2, None),
            ("3/4", "", 3 / 4, None), ("5/6", "_rate83", 5 / 6, None), ("7/8", "_rate88", 7 / 8, None),
        )
    ),
    _row(
        _FIGURE_5, "CondenseNet-50 LGC, C = 1 (undivided)", "cifar*_condensenet50", 66,
        model="condensenet50_lgc", condensation=1, fits="authors",
    ),
    *(
        _row(_FIGURE_5, f"CondenseNet-50 LGC, C = {factor}", f"cifar*_condensenet50_lgc{suffix}", condensation=factor)
        for factor, suffix in ((2, "_condensation2"), (4, ""))
    ),
    *(
        _row(_FIGURE_5, f"CondenseNet-50 SGC, {groups} groups", f"cifar*_condensenet50_sgc{suffix}", groups=groups)
        for groups, suffix in ((2, "_groups2"), (4, ""))
    ),
    *(
        _row(_FIGURE_6, f"CondenseNet-50-DGC, rate 3/4, heads: {heads}", f"cifar10_condensenet50_dgc{suffix}",
             heads=heads)
        for heads, suffix in ((1, "_heads1"), (2, "_heads2"), (4, ""), (8, "_heads8"))
    ),
)  # fmt: skip


def needs_torch_pruning() -> list[str]:
    """The labels of the rows that cannot be counted, for they are pruned and Torch-Pruning is not installed."""
    return [] if find_spec("torch_pruning") else [row.label for row in ROWS if row.pruned]


def compare_with_paper() -> list[CountedFigure]:
    """Count every row that can be; in millions of MACs."""
    dense = {name: _count(create_model(name)) for name in {row.saving_over for row in ROWS if row.saving_over}}
    left_out = needs_torch_pruning()
    return [_compare(row, dense) for row in ROWS if row.label not in left_out]


def _compare(row: ReportedFigure, dense: dict[str, dict[str, float]]) -> CountedFigure:
    model, fits = _build(row)
    macs = _count(model)
    saving = {key: dense[row.saving_over][key] / macs[key] for key in macs} if row.saving_over else None
    difference = None
    if row.reported is not None:
        figures = saving or macs
        difference = min((100 * (figure / row.reported - 1) for figure in figures.values()), key=abs)
    unit = "x" if row.saving_over else "M"
    return CountedFigure(
        where=row.where,
        label=row.label,
        reported=f"{row.reported:g}{unit}" if row.reported is not None else "in a figure",
        paper=macs["paper"],
        authors=macs["authors"],
        paper_saving=saving["paper"] if saving else None,
        authors_saving=saving["authors"] if saving else None,
        difference=difference,
        fits=fits,
        recipe=row.recipe,
    )


def _build(row: ReportedFigure) -> tuple[nn.Module, str]:
    """The network of a row, and how it comes to its MACs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # how large the groups of FLGC are is drawn
        model = create_model(row.model, **row.options)
    if row.change:
        row.change(model)
    if row.pruned is None:
        return model, row.fits
    for norm in model.modules():  # scales spread alike over every layer: one threshold then prunes them alike
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, generator=torch.Generator().manual_seed(norm.num_features))
    budget = None
    if row.pruned.rate is None and row.reported is not None:
        budget = 1 / row.reported if row.saving_over else row.reported / _count(copy.deepcopy(model))["paper"]
    pruning = attach_pruning(model, row.pruned.method, row.pruned.rate, budget)
    return what_will_be_left(model), row.fits.replace("a value", f"{row.pruned.method} at {pruning.rate:.2f}")


def _count(model: nn.Module) -> dict[str, float]:
    """Shapes are enough, but for groups of unequal sizes."""
    if not any(isinstance(layer, FullyLearnableGroupConv2d) for layer in model.modules()):
        model = model.to("meta")
    return {convention: count.macs / 1e6 for convention, count in count_macs_by_convention(model).items()}
