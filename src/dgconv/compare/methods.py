"""The methods that are compared: what they are called, and in what form each of them runs once it is trained."""

import copy
from dataclasses import dataclass

from torch import nn

from ..errors import UserError, unknown_name
from ..layers import to_static_
from ..pruning import PRUNING_METHODS, what_is_left


@dataclass(frozen=True)
class Rival:
    """``how_it_runs`` says plainly what becomes of the saved MACs."""

    name: str
    title: str
    how_it_runs: str

    @property
    def prunes(self) -> bool:
        """A pruning method of a dense network, and not a layer."""
        return self.name in PRUNING_METHODS

    def model_name(self, backbone: str) -> str:
        return backbone if self.prunes or self.name == "dense" else f"{backbone}_{self.name}"


SMALLER = "static: a smaller plain network"
DENSE_ANYWAY = "not faster: computes densely, masks afterwards"
RIVALS = {
    rival.name: rival
    for rival in (
        Rival("dense", "dense", "plain convolutions"),
        Rival("sgc", "SGC", "static: grouped convolutions"),
        Rival("lgc", "LGC", "static: picks channels by index, then grouped convolutions"),
        Rival("flgc", "FLGC", "static: picks channels by index, then a convolution a group"),
        Rival("fbs", "FBS", "dynamic: an image's losing outputs are neither computed nor read"),
        Rival("cgnet", "CGNet", DENSE_ANYWAY),
        Rival("lccn", "LCCN", DENSE_ANYWAY),
        Rival("l1", "L1", SMALLER),
        Rival("sfp", "SFP", SMALLER),
        Rival("fpgm", "FPGM", SMALLER),
        Rival("ns", "NS", SMALLER),
        Rival("dgc", "DGC", "dynamic: each image's left out channels are never read"),
        Rival("dgcg", "DGC-G", "dynamic: each image's left out channels are never read"),
    )
}


def find_rivals(names: str) -> list[Rival]:
    """By names, separated by commas."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UserError(f"name at least one method. Known: {', '.join(RIVALS)}")
    for name in wanted:
        if name not in RIVALS:
            raise unknown_name("method", name, RIVALS)
        if wanted.count(name) > 1:
            raise UserError(f"the method {name!r} is named twice")
    return [RIVALS[name] for name in wanted]


def as_it_runs(model: nn.Module) -> nn.Module:
    """The network as it would be used: without what was pruned, without masks where they are static; on the CPU."""
    form = what_is_left(copy.deepcopy(model).cpu().float().eval())
    to_static_(form)
    return form
