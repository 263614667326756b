"""Models by name, fresh or trained."""

from fnmatch import fnmatch
from typing import Any

from ..errors import unknown_name
from ..layers.method import ConvLayer
from . import _registry
from ._classifier import ImageClassifier
from .pretrained import create_pretrained, list_cards


def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """Names that match a shell pattern, such as ``"resnet*_dgc"``; with ``pretrained`` those that have weights."""
    names = {card.model["name"] for card in list_cards().values()} if pretrained else _registry.list_models()
    return sorted(name for name in names if fnmatch(name, pattern))


def create_model(
    name: str,
    num_classes: int | None = None,
    conv_layer: ConvLayer | None = None,
    *,
    pretrained: bool | str = False,
    **options: Any,
) -> ImageClassifier:
    """Build a registered model.

    Args:
        name: ``backbone`` (dense) or ``backbone_method``, such as ``resnet18_dgc``; docs/methods.md has each method.
        num_classes: default as in the paper, 10 or 1000.
        conv_layer: a layer of your own with ``nn.Conv2d``'s signature, where the method's would go. Such a model
            cannot be written to disk by name, so it has no ``config``.
        pretrained: with trained weights, offline (:mod:`dgconv.models.pretrained`): True, or the name of the weights
            where a model has several. Options must be those they were trained with, or left out.
        prune, prune_rate, prune_budget: static filter pruning of a dense network while it trains, see
            :func:`dgconv.pruning.attach_pruning`.
        widths: of the layers of a network that was cut, see :func:`dgconv.pruning.cut`.
        options: of the layer (``pruning_rate``, ``heads``, ``groups``, ...), of the backbone (``stages``, ``growth``,
            ``width``, ...) and of the way to prune. None means the default.

    The model carries what it was built from in ``model.config``.
    """
    if name not in _registry.list_models():
        raise unknown_name("model", name, _registry.list_models())
    if not pretrained:
        return _registry.build_model(name, num_classes, conv_layer, **options)
    wanted = {"num_classes": num_classes, "conv_layer": conv_layer, **options}
    return create_pretrained(name, pretrained, {key: value for key, value in wanted.items() if value is not None})
