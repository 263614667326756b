"""Models by name: a registered backbone, and the method that its convolutions use, ``backbone_method``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from inspect import signature
from typing import Any, get_type_hints

from torch import nn

from ..errors import UserError, unknown_name
from ..layers import (
    ChannelGatingConv2d,
    DynamicGroupConv2d,
    FeatureBoostingConv2d,
    FullyLearnableGroupConv2d,
    LearnedGroupConv2d,
    LowCostCollaborativeConv2d,
    StandardGroupConv2d,
)
from ..layers.convert import ConvLayer
from ..layers.fusible import BatchNormReLU2d
from ._classifier import ImageClassifier


@dataclass(frozen=True)
class Method:
    """A convolution layer, what is fixed about it, and what the caller may choose."""

    layer: ConvLayer
    fixed: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()


DGC_OPTIONS = ("pruning_rate", "heads", "squeeze", "halve_squeeze", "per_head_init")
METHODS = {
    "": Method(nn.Conv2d),
    "sgc": Method(StandardGroupConv2d, options=("groups",)),
    "dgc": Method(DynamicGroupConv2d, {"gate": "head"}, (*DGC_OPTIONS, "keep_rule", "tie_rule")),
    "dgcg": Method(DynamicGroupConv2d, {"gate": "global"}, DGC_OPTIONS),
    "lgc": Method(LearnedGroupConv2d, options=("groups", "condensation", "group_lasso")),
    "flgc": Method(FullyLearnableGroupConv2d, options=("groups", "gradient")),
    "fbs": Method(FeatureBoostingConv2d, options=("density", "density_step", "l1_weight")),
    "cgnet": Method(ChannelGatingConv2d, options=("base_share", "base", "target", "target_weight", "start", "slope")),
    "lccn": Method(LowCostCollaborativeConv2d, options=("open_share", "ceiling")),
}


def norm_after(conv: nn.Module, channels: int, relu: bool = False) -> nn.Module:
    """The batch norm (and ReLU) after a convolution, or what stands in its place where the layer has its own."""
    layer = conv[-1] if isinstance(conv, nn.Sequential) else conv
    if getattr(layer, "normalizes", False):
        return nn.ReLU(inplace=True) if relu else nn.Identity()
    return BatchNormReLU2d(channels) if relu else nn.BatchNorm2d(channels)


@dataclass(frozen=True)
class Backbone:
    build: Callable[..., ImageClassifier]
    defaults: dict[str, Any]


_BACKBONES: dict[str, Backbone] = {}


def register_backbone(
    **defaults: Any,
) -> Callable[[Callable[..., ImageClassifier]], Callable[..., ImageClassifier]]:
    """Registers a builder under its own name, for every method.

    The builder takes ``conv_layer`` and ``num_classes``. ``defaults`` are the layer options with which the paper's
    reported MACs come out; a method takes those it knows.
    """

    def register(build: Callable[..., ImageClassifier]) -> Callable[..., ImageClassifier]:
        if "_" in build.__name__:
            raise UserError(f"a backbone's name must not hold '_', which parts it from the method: {build.__name__}")
        _BACKBONES[build.__name__] = Backbone(build, defaults)
        return build

    return register


def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """Names that match a shell pattern, such as ``"resnet*_dgc"``; with ``pretrained`` those that have weights."""
    if pretrained:
        from .pretrained import list_cards

        names = list({card.model["name"] for card in list_cards().values()})
    else:
        names = [f"{backbone}_{method}".rstrip("_") for backbone in _BACKBONES for method in METHODS]
    return sorted(name for name in names if fnmatch(name, pattern))


def option_kinds(name: str) -> dict[str, Any]:
    """The types of what ``create_model`` takes for a model there is, as far as layer and backbone tell them."""
    backbone_name, _, method_name = name.partition("_")
    layer = METHODS[method_name].layer
    of_layer = get_type_hints(layer.__init__) if isinstance(layer, type) else {}  # type: ignore[misc]
    of_layer = {key: kind for key, kind in of_layer.items() if key in METHODS[method_name].options}
    return get_type_hints(create_model) | get_type_hints(_BACKBONES[backbone_name].build) | of_layer


def create_model(
    name: str,
    num_classes: int | None = None,
    conv_layer: ConvLayer | None = None,
    *,
    pretrained: bool | str = False,
    prune: str | None = None,
    prune_rate: float | None = None,
    prune_budget: float | None = None,
    widths: dict[str, list[int]] | None = None,
    **options: Any,
) -> ImageClassifier:
    """Build a registered model.

    Args:
        name: ``backbone`` (dense) or ``backbone_method``: ``dgc``, ``dgcg`` (global gate), ``sgc``, ``lgc``, ``flgc``,
            ``fbs``, ``cgnet`` or ``lccn``; :mod:`dgconv.layers` has a file for each.
        num_classes: default as in the paper, 10 or 1000.
        conv_layer: a layer of your own with ``nn.Conv2d``'s signature, where the method's would go. Such a model
            cannot be written to disk by name, so it has no ``config``.
        pretrained: with trained weights, offline (:mod:`dgconv.models.pretrained`): True, or the name of the weights
            where a model has several. Options must be those they were trained with, or left out.
        prune, prune_rate, prune_budget: static filter pruning of a dense network while it trains, see
            :func:`dgconv.pruning.attach_pruning`.
        widths: of the layers of a network that was cut, see :func:`dgconv.pruning.cut`.
        options: of the layer (``pruning_rate``, ``heads``, ``groups``, ``condensation``, ``density``, ...) and of the
            backbone (``stages``, ``growth``, ``width``, ...). None means the default.

    The model carries what it was built from in ``model.config``.
    """
    if name not in list_models():
        raise unknown_name("model", name, list_models())
    if pretrained:
        from .pretrained import create_pretrained

        pruning = {"prune": prune, "prune_rate": prune_rate, "prune_budget": prune_budget, "widths": widths}
        wanted = {"num_classes": num_classes, "conv_layer": conv_layer, **pruning, **options}
        return create_pretrained(name, pretrained, {key: value for key, value in wanted.items() if value is not None})
    backbone_name, _, method_name = name.partition("_")
    backbone, method = _BACKBONES[backbone_name], METHODS[method_name]

    given = {key: value for key, value in options.items() if value is not None}
    layer_options = {key: value for key, value in backbone.defaults.items() if key in method.options}
    layer_options |= {key: value for key, value in given.items() if key in method.options}
    backbone_options = {key: value for key, value in given.items() if key not in method.options}
    if num_classes is not None:
        backbone_options["num_classes"] = num_classes

    known = set(signature(backbone.build).parameters) - {"conv_layer"}
    if unknown := sorted(set(backbone_options) - known):
        raise UserError(
            f"{name} has no option {', '.join(map(repr, unknown))}. It takes {', '.join(sorted(known))}"
            + (f"; its layers take {', '.join(method.options)}" if method.options else "")
        )
    layer = conv_layer or partial(method.layer, **method.fixed, **layer_options)
    model = backbone.build(conv_layer=layer, **backbone_options)
    if not isinstance(model, ImageClassifier):
        raise UserError(
            f"the backbone {backbone_name} builds a {type(model).__name__}, which is no ImageClassifier: derive it "
            "from dgconv.models.ImageClassifier, with classifier_path, num_features, input_size and forward_features"
        )
    if conv_layer is None:
        cut = {"widths": widths} if widths else {}
        model.config = {"name": name, "num_classes": model.num_classes, **given, **cut}
    if widths or prune:
        from ..pruning import attach_pruning, resize_  # which stands above the models

        if widths:
            resize_(model, widths)
        if prune:
            attach_pruning(model, prune, prune_rate, prune_budget)
    return model
