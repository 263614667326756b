"""What a benchmark compares: a network and its siblings, the same backbone with another kind of convolution."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import UserError
from ..layers.method import layer_methods
from ..layers.select import dynamic_layers
from ..models import ImageClassifier, create_model, list_models, load_model
from ..models.pretrained import find_run
from ..models.storage import input_size_of
from ..pruning import pruning_of
from ..train.losses import take_saliencies
from ..train.recipe_files import list_recipes, load_recipe
from ..train.threshold import quantile
from .forms import Kind
from .settle import settle_


@dataclass(frozen=True)
class Networks:
    """Three networks that differ in their convolutions alone, in eval mode, ready to be timed."""

    title: str
    input_size: tuple[int, int, int]
    by_kind: dict[Kind, nn.Module]


def find_networks(
    source: str, *, pruning_rate: float | None = None, input_size: tuple[int, int, int] | None = None
) -> Networks:
    """The networks for a model's name, a recipe (a name or a ``.toml`` file) or a run folder.

    Weights are random, except for the network of a run. ``pruning_rate`` and ``input_size`` overrule what it says.
    """
    path = Path(source)
    trained: ImageClassifier | None = None
    if path.is_dir():
        run = find_run(path)
        trained = load_model(run)
        if pruning_of(trained) or "widths" in trained.config:
            raise UserError(
                f"{path} has pruned filters, and no siblings with other convolutions. Time what is left of it with "
                "dgconv.bench.measure(dgconv.pruning.what_is_left(model), images), or methods together with "
                "'dgconv compare'"
            )
        config, size = trained.config, input_size_of(run, trained)
    elif source in list_recipes() or source.endswith(".toml"):
        recipe = load_recipe(source)
        data = recipe.data.facts()
        config, size = recipe.build_model(data.classes).config, (3, data.side, data.side)
    elif source in list_models():
        model = create_model(source)
        config, size = model.config, model.input_size
    else:
        raise UserError(
            f"{source!r} is no run folder, model or recipe. 'dgconv models' and 'dgconv recipes' list the last two; "
            "a network of your own is timed by dgconv.bench.measure"
        )
    size = input_size or size
    if size[0] != 3 or min(size) < 1:
        raise UserError(f"`input_size` must be 3 channels, height, width, got {' '.join(map(str, size))}")
    backbone, _, method = config["name"].partition("_")
    dynamic = method if method in ("dgc", "dgcg") else "dgc"
    if trained and method == dynamic and pruning_rate is not None:
        raise UserError("a run is measured at the pruning rate it was trained for; leave `pruning_rate` out")
    _check_size(trained or create_model(**config), size)

    def network(kind: str) -> ImageClassifier:
        if trained and kind == method:
            return trained
        model = create_model(**_options(config, backbone, kind, pruning_rate))
        _make_ordinary(model, size)
        return model

    return Networks(source, size, {"dense": network(""), "sgc": network("sgc"), "dgc": network(dynamic)})


@torch.no_grad()
def _check_size(model: ImageClassifier, size: tuple[int, int, int]) -> None:
    """Refuse images of which nothing is left between two layers."""
    try:
        model.eval()(torch.zeros(1, *size))
    except RuntimeError as error:
        raise UserError(
            f"the network does not take images of {' x '.join(map(str, size))}: {error}. "
            "Give a larger `input_size`, or leave it out"
        ) from None


def _options(config: dict[str, Any], backbone: str, kind: str, pruning_rate: float | None) -> dict[str, Any]:
    """Arguments of ``create_model``: the backbone's options go to every sibling, a layer's where it knows them."""
    methods = layer_methods()
    known = methods[kind].options if kind else {}
    of_layers = {option for method in methods.values() for option in method.options}
    options = {key: value for key, value in config.items() if key not in of_layers or key in known}
    if pruning_rate is not None and "pruning_rate" in known:
        options["pruning_rate"] = pruning_rate
    return options | {"name": f"{backbone}_{kind}".rstrip("_")}


def _make_ordinary(model: ImageClassifier, size: tuple[int, int, int]) -> None:
    settle_(model, size)
    thresholds = [t for _, layer in dynamic_layers(model) if (t := layer.gate.shared_threshold) is not None]
    if thresholds:
        threshold = _global_threshold(model, size)
        for place in thresholds:
            place.fill_(threshold)


@torch.no_grad()
def _global_threshold(model: nn.Module, size: tuple[int, int, int]) -> float:
    """The one at which random images are pruned at the rate of the model, which no trainer has set yet."""
    (rate,) = {layer.pruning_rate for _, layer in dynamic_layers(model)}
    model.train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.eval()
    model(torch.randn(4, *size))
    scores = torch.cat([saliency.abs().flatten() for saliency in take_saliencies(model)])
    model.eval()
    return float(quantile(scores, rate))
