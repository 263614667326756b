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


def options_of(name: str) -> dict[str, Option]:
    """What can be chosen about a model: of its backbone, of its layers, and for a dense one how to prune it."""
    if name not in list_models():
        raise unknown_name("model", name, list_models())
    backbone, _, method = name.partition("_")
    return _BACKBONES[backbone].choices | (layer_methods()[method].choices if method else _pruning_options())


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


def build_model(
    name: str,
    num_classes: int | None = None,
    conv_layer: ConvLayer | None = None,
    *,
    prune: str | None = None,
    prune_rate: float | None = None,
    prune_budget: float | None = None,
    widths: dict[str, list[int]] | None = None,
    **options: Any,
) -> ImageClassifier:
    """A registered model with fresh weights; see :func:`~dgconv.models.create_model`."""
    if name not in list_models():
        raise unknown_name("model", name, list_models())
    backbone_name, _, method_name = name.partition("_")
    backbone, method = _BACKBONES[backbone_name], layer_methods().get(method_name)

    given = {key: value for key, value in options.items() if value is not None}
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
        cut = {"widths": widths} if widths else {}
        model.config = {"name": name, "num_classes": model.num_classes, **given, **cut}
    if widths:
        resize_(model, widths)
    if prune:
        attach_pruning(model, prune, prune_rate, prune_budget, **pruning_options)
    return model


def _layer_of(method: Method, options: dict[str, Any]) -> ConvLayer:
    """The layer of a method for one network."""
    return partial(method.make, **method.fixed, **options, **method.shared(options))


def _options_of_pruning(prune: str | None) -> dict[str, Any]:
    return dict(pruning_methods()[prune].options) if prune in pruning_methods() else {}
