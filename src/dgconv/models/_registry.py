"""Models by name: a registered backbone, and the method that its convolutions use, ``backbone_method``."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from typing import Any, Literal

from torch import nn

from ..errors import UserError, unknown_name
from ..layers.fusible import BatchNormReLU2d
from ..layers.method import ConvLayer, Method, Option, describe_options, layer_methods, pruning_methods
from ..pruning import attach_pruning, resize_
from ..values import BELOW_ONE, SHARE
from ._classifier import ImageClassifier
from ._converted import Converted, convert_as_told_
from .others import build_of_others, is_of_others

NOT_OPTIONS = {"conv_layer", "num_classes"}  # of what a backbone takes


def norm_after(conv: nn.Module, channels: int, relu: bool = False) -> nn.Module:
    """The batch norm (and ReLU) after a convolution, or what stands in its place where the layer has its own."""
    layer = conv[-1] if isinstance(conv, nn.Sequential) else conv
    if getattr(layer, "normalizes", False):
        return nn.ReLU(inplace=True) if relu else nn.Identity()
    return BatchNormReLU2d(channels) if relu else nn.BatchNorm2d(channels)


def unless_method(conv_layer: ConvLayer, own: ConvLayer) -> ConvLayer:
    """A network's own group convolution; where a method is asked for, the method's layer in its place."""
    return own if conv_layer is nn.Conv2d else conv_layer


@dataclass(frozen=True)
class Backbone:
    """A network that takes any convolution, and the layer options with which the reported MACs come out."""

    build: Callable[..., ImageClassifier]
    defaults: dict[str, Any]

    @cached_property
    def choices(self) -> dict[str, Option]:
        """Its own options by name, described where its class or its builder has words for them."""
        names = dict.fromkeys(name for name in signature(self.build).parameters if name not in NOT_OPTIONS)
        of_build = describe_options(self.build, names)
        built = self.build.__annotations__.get("return")
        if not isinstance(built, type):
            return of_build
        of_class = describe_options(built, dict.fromkeys(n for n in names if n in signature(built).parameters))
        return {name: option if option.help else of_class.get(name, option) for name, option in of_build.items()}


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


def list_backbones() -> list[str]:
    return sorted(_BACKBONES)


def list_models() -> list[str]:
    """Every name that a model can be built by."""
    return [f"{backbone}_{method}".rstrip("_") for backbone in _BACKBONES for method in ("", *layer_methods())]


def is_known(name: str) -> bool:
    """Whether a model can be built by this name, as far as the name tells."""
    return name in list_models() or is_of_others(name)


def options_of(name: str) -> dict[str, Option]:
    """What can be chosen about a model: of its backbone, of its layers, and for a dense one how to change it."""
    if not is_known(name):
        raise unknown_name("model", name, list_models())
    if is_of_others(name):
        return _pruning_options() | _CONVERTED
    backbone, _, method = name.partition("_")
    of_layers = layer_methods()[method].choices if method else _pruning_options() | _CONVERTED
    return _BACKBONES[backbone].choices | of_layers


def all_options() -> dict[str, list[Option]]:
    """What can be chosen about some model, by name: of the layers, of the backbones, and how to prune."""
    of_layers = [method.choices for method in layer_methods().values()]
    of_backbones = [backbone.choices for backbone in _BACKBONES.values()]
    found: dict[str, list[Option]] = {}
    for choices in [*of_layers, *of_backbones, _pruning_options()]:
        for name, option in choices.items():
            found.setdefault(name, []).append(option)
    return found


def _pruning_options() -> dict[str, Option]:
    known: Any = Literal[tuple(pruning_methods())]
    budget = "Instead of a rate: the MACs to leave, as a share of the dense model's"
    of_all = (
        Option("prune", known | None, None, "Static filter pruning of a dense model while it trains, by method"),
        Option("prune_rate", float | None, None, "Share of the channels to prune; default 0.3, of ns 0.4", BELOW_ONE),
        Option("prune_budget", float | None, None, budget, SHARE),
    )
    return {option.name: option for option in of_all} | {
        name: option for method in pruning_methods().values() for name, option in method.choices.items()
    }


_CONVERTED = {
    "converted": Option("converted", Converted | None, None, "Dynamic layers by name, each with its heads and rate")
}


def build_model(
    name: str,
    num_classes: int | None = None,
    conv_layer: ConvLayer | None = None,
    *,
    prune: str | None = None,
    prune_rate: float | None = None,
    prune_budget: float | None = None,
    widths: dict[str, list[int]] | None = None,
    converted: Converted | None = None,
    **options: Any,
) -> ImageClassifier:
    """A registered model, or one of others, with fresh weights; see :func:`~dgconv.models.create_model`."""
    if not is_known(name):
        raise unknown_name("model", name, list_models())
    given = {key: value for key, value in options.items() if value is not None}
    if is_of_others(name):
        model: ImageClassifier = build_of_others(name, num_classes)
        if unknown := sorted(given.keys() - _options_of_pruning(prune)):
            raise UserError(f"{name} has no option {', '.join(map(repr, unknown))}")
        pruning_options = given
    else:
        model, pruning_options = _build_registered(name, num_classes, conv_layer, prune, given)
    changes = {name: change for name, change in (("widths", widths), ("converted", converted)) if change}
    if conv_layer is None:
        model.config |= changes
    if widths:
        resize_(model, widths)
    if converted:
        convert_as_told_(model, converted)
    if prune:
        attach_pruning(model, prune, prune_rate, prune_budget, **pruning_options)
    return model


def _build_registered(
    name: str, num_classes: int | None, conv_layer: ConvLayer | None, prune: str | None, given: dict[str, Any]
) -> tuple[ImageClassifier, dict[str, Any]]:
    """The model, and those of the options that are for the way to prune it."""
    backbone_name, _, method_name = name.partition("_")
    backbone, method = _BACKBONES[backbone_name], layer_methods().get(method_name)

    of_layer, of_pruning = (method.options if method else {}), _options_of_pruning(prune)
    layer_options = {key: value for key, value in (backbone.defaults | given).items() if key in of_layer}
    pruning_options = {key: value for key, value in given.items() if key in of_pruning}
    backbone_options = {key: value for key, value in given.items() if key not in {*of_layer, *of_pruning}}
    if unknown := sorted(set(backbone_options) - set(backbone.choices)):
        raise UserError(
            f"{name} has no option {', '.join(map(repr, unknown))}. It takes {', '.join(sorted(backbone.choices))}"
            + (f"; its layers take {', '.join(of_layer)}" if of_layer else "")
        )
    if num_classes is not None:
        backbone_options["num_classes"] = num_classes
    layer = conv_layer or (_layer_of(method, layer_options) if method else nn.Conv2d)
    model = backbone.build(conv_layer=layer, **backbone_options)
    if not isinstance(model, ImageClassifier):
        raise UserError(
            f"the backbone {backbone_name} builds a {type(model).__name__}, which is no ImageClassifier: derive it "
            "from dgconv.models.ImageClassifier, with classifier_path, num_features, input_size and forward_features"
        )
    if conv_layer is None:
        model.config = {"name": name, "num_classes": model.num_classes, **given}
    return model, pruning_options


def _layer_of(method: Method, options: dict[str, Any]) -> ConvLayer:
    """The layer of a method for one network."""
    return partial(method.make, **method.fixed, **options, **method.shared(options))


def _options_of_pruning(prune: str | None) -> dict[str, Any]:
    return dict(pruning_methods()[prune].options) if prune in pruning_methods() else {}
