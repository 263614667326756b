"""What a benchmark compares: a network and its siblings, the same backbone with another kind of convolution."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..analysis.plan import look_at_data
from ..errors import UserError
from ..layers import GlobalGate
from ..layers.select import dynamic_layers
from ..models import ImageClassifier, create_model, list_models, load_model
from ..models._registry import METHODS
from ..models.storage import input_size_of
from ..pruning import pruning_of
from ..train.losses import take_saliencies
from ..train.recipe import list_recipes, load_recipe
from ..train.threshold import quantile
from .settle import settle_

LAYER_OPTIONS = {option for method in METHODS.values() for option in method.options}


@dataclass(frozen=True)
class Networks:
    """Three networks that differ in their convolutions alone, in eval mode, ready to be timed."""

    title: str
    input_size: tuple[int, int, int]
    dense: ImageClassifier
    sgc: ImageClassifier
    dgc: ImageClassifier


def find_networks(
    source: str, *, pruning_rate: float | None = None, input_size: tuple[int, int, int] | None = None
) -> Networks:
    """The networks for a model's name, a recipe (a name or a ``.toml`` file) or a run folder.

    Weights are random, except for the network of a run. ``pruning_rate`` and ``input_size`` overrule what it says.
    """
    path = Path(source)
    trained: ImageClassifier | None = None
    if path.is_dir():
        trained = load_model(path)
        if pruning_of(trained) or "widths" in trained.config:
            raise UserError(
                f"{path} has pruned filters, and no siblings with other convolutions. Time what is left of it with "
                "dgconv.deploy.measure(dgconv.pruning.what_is_left(model), images), or methods together with "
                "'dgconv compare'"
            )
        config, size = trained.config, input_size_of(path, trained)
    elif source in list_recipes() or source.endswith(".toml"):
        recipe = load_recipe(source)
        data = look_at_data(recipe)
        config, size = recipe.build_model(data.classes).config, (3, data.side, data.side)
    elif source in list_models():
        model = create_model(source)
        config, size = model.config, model.input_size
    else:
        raise UserError(
            f"{source!r} is no run folder, model or recipe. 'dgconv models' and 'dgconv recipes' list the last two; "
            "a network of your own is timed by dgconv.deploy.measure"
        )
    size = input_size or size
    if size[0] != 3 or min(size) < 1:
        raise UserError(f"input_size must be 3 channels, height, width, got {' '.join(map(str, size))}")
    backbone, _, method = config["name"].partition("_")
    dynamic = method if method in ("dgc", "dgcg") else "dgc"
    if trained and method == dynamic and pruning_rate is not None:
        raise UserError("a run is measured at the pruning rate it was trained for; leave --pruning-rate out")
    _check_size(trained or create_model(**config), size)

    def network(kind: str) -> ImageClassifier:
        if trained and kind == method:
            return trained
        model = create_model(**_options(config, backbone, kind, pruning_rate))
        _make_ordinary(model, size)
        return model

    return Networks(source, size, network(""), network("sgc"), network(dynamic))


@torch.no_grad()
def _check_size(model: ImageClassifier, size: tuple[int, int, int]) -> None:
    """Refuse images of which nothing is left between two layers."""
    try:
        model.eval()(torch.zeros(1, *size))
    except RuntimeError as error:
        raise UserError(
            f"the network does not take images of {' x '.join(map(str, size))}: {error}. "
            "Give a larger --input-size, or leave it out"
        ) from None


def _options(config: dict[str, Any], backbone: str, kind: str, pruning_rate: float | None) -> dict[str, Any]:
    """For ``create_model``: the backbone's options go to every sibling, a layer's only where it knows them."""
    known = METHODS[kind].options
    options = {key: value for key, value in config.items() if key not in LAYER_OPTIONS or key in known}
    if pruning_rate is not None and "pruning_rate" in known:
        options["pruning_rate"] = pruning_rate
    return options | {"name": f"{backbone}_{kind}".rstrip("_")}


def _make_ordinary(model: ImageClassifier, size: tuple[int, int, int]) -> None:
    settle_(model, size)
    gates = [layer.gate for _, layer in dynamic_layers(model) if isinstance(layer.gate, GlobalGate)]
    if gates:
        threshold = _global_threshold(model, size)
        for gate in gates:
            gate.threshold.fill_(threshold)


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
