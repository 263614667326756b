"""Dynamic layers in a network, each with heads and a rate of its own, as a plan has found them."""

from collections.abc import Mapping
from functools import partial

from torch import nn

from ..errors import UserError
from ..layers import DynamicGroupConv2d
from ..layers.convert import convert_

Converted = dict[str, dict[str, float]]  # by the name of the convolution: heads and pruning_rate


def convert_as_told_(model: nn.Module, converted: Mapping[str, Mapping[str, float]]) -> None:
    """Puts dynamic layers in the place of these convolutions, whose weights they take over. All saliencies start at 1,
    so that nothing changes before channels are left out."""
    by_options: dict[tuple[int, float], set[str]] = {}
    for name, options in converted.items():
        if set(options) != {"heads", "pruning_rate"} or options["heads"] != int(options["heads"]):
            raise UserError(f"the dynamic layer {name} must say its heads, a whole number, and its pruning_rate")
        by_options.setdefault((int(options["heads"]), options["pruning_rate"]), set()).add(name)
    for (heads, rate), names in by_options.items():
        layer = partial(DynamicGroupConv2d, heads=heads, pruning_rate=rate, saliency_start="ones")
        report = convert_(model, layer, lambda name, conv, names=names: name in names)  # type: ignore[misc]
        if missing := names - {row.name for row in report.replaced}:
            reasons = {row.name: row.reason for row in report.left}
            told = [f"{name}: {reasons.get(name, 'there is no such convolution')}" for name in sorted(missing)]
            raise UserError(f"these layers cannot be made dynamic: {'; '.join(told[:4])}")
