"""The methods that are compared, from their records, and in what form each of them runs once it is trained."""

import copy
from dataclasses import dataclass

from torch import nn

from ..errors import UserError, unknown_name
from ..layers import DynamicGroupConv2d, to_static_
from ..layers.method import METHODS, Method
from ..pruning import what_is_left

DENSE = "dense"


@dataclass(frozen=True)
class Rival:
    """A row of a comparison: a method, or the dense network, which has none."""

    name: str
    method: Method | None

    @property
    def title(self) -> str:
        return self.method.title if self.method else self.name

    @property
    def how_it_runs(self) -> str:
        """What becomes of the saved MACs."""
        return self.method.how_it_runs if self.method else "plain convolutions"

    def model_name(self, backbone: str) -> str:
        has_layer = self.method is not None and not self.method.prunes
        return f"{backbone}_{self.name}" if has_layer else backbone


def rivals() -> dict[str, Rival]:
    """The dense network, then static methods, those that look at the image, those that prune, and last DGC."""

    def order(method: Method) -> tuple[bool, bool, bool]:
        return method.make is DynamicGroupConv2d, method.prunes, method.choice_depends_on_image

    return {DENSE: Rival(DENSE, None)} | {m.name: Rival(m.name, m) for m in sorted(METHODS.values(), key=order)}


def find_rival(name: str) -> Rival:
    if name not in rivals():
        raise unknown_name("method", name, rivals())
    return rivals()[name]


def find_rivals(names: str) -> list[Rival]:
    """Finds rivals by names, separated by commas; all there are, if none is named."""
    wanted = [name.strip() for name in names.split(",") if name.strip()] if names else list(rivals())
    if not wanted:
        raise UserError(f"name at least one method, got {names!r}. Known: {', '.join(rivals())}")
    for name in wanted:
        if wanted.count(name) > 1:
            raise UserError(f"the method {name!r} is named twice")
    return [find_rival(name) for name in wanted]


def as_it_runs(model: nn.Module) -> nn.Module:
    """The network as it would be used: without what was pruned, without masks where they are static; on the CPU."""
    form = what_is_left(copy.deepcopy(model).cpu().float().eval())
    to_static_(form)
    return form
