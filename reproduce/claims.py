"""What the paper claims about its networks on CIFAR, each a comparison of two recipes, and whether our runs agree."""

from dataclasses import dataclass
from itertools import pairwise

from .groups import Group, difference, is_beyond_noise, seeds_to_tell
from .wanted import Wanted, groups_of

HEADINGS = ("the paper's claim", "better", "than", "difference ± standard error", "in our runs")


@dataclass(frozen=True)
class Claim:
    what: str
    better: str  # recipes
    than: str

    def line(self, groups: list[Group]) -> list[str]:
        """The claim as text, in the order of ``HEADINGS``."""
        better, than = (_most_seeds(name, groups) for name in (self.better, self.than))
        cells = [self.what, f"`{self.better}`", f"`{self.than}`"]
        if better is None or than is None:
            return [*cells, "", "missing"]
        delta, error = difference(than, better)
        spread = "" if error is None else f" ± {error:.2f}"
        return [*cells, f"{delta:+.2f}{spread}", _verdict(better, than, delta)]


def _verdict(better: Group, than: Group, delta: float) -> str:
    holds = "holds" if delta < 0 else "does not hold"
    is_sure = is_beyond_noise(than, better)
    if better.spread is None or than.spread is None:
        return f"{holds}, if a single seed spreads as others do" if is_sure else f"{holds}, too few seeds to be sure"
    if is_sure:
        return holds
    seeds = seeds_to_tell(than, better)
    return "undecided, within the noise" + (f"; {seeds} seeds of each might tell" if seeds else "")


def _most_seeds(name: str, groups: list[Group]) -> Group | None:
    finished = [group for group in groups_of(Wanted(name), groups) if group.finished]
    return max(finished, key=lambda group: len(group.finished), default=None)


CLAIMS = (
    *(
        Claim(what, f"{data}_condensenet50_{better}", f"{data}_condensenet50{than}")
        for what, better, than in (
            ("less work, lower error: DGC at 1/3 against the undivided network", "dgc_rate33", ""),
            ("dynamic groups against learned ones", "dgc", "_lgc"),
            ("dynamic groups against standard ones", "dgc", "_sgc"),
            ("learned groups against standard ones", "lgc", "_sgc"),
        )
        for data in ("cifar10", "cifar100")
    ),
    *(
        Claim("one global threshold against one a head", f"{data}_condensenet86_dgcg", f"{data}_condensenet86_dgc")
        for data in ("cifar10", "cifar100")
    ),
    *(
        Claim(f"four heads against {number}", "cifar10_condensenet50_dgc", f"cifar10_condensenet50_dgc_heads{heads}")
        for heads, number in ((1, "one"), (2, "two"), (8, "eight"))
    ),
    *(
        Claim("the error rises with the pruning rate", f"cifar10_condensenet50_{low}", f"cifar10_condensenet50_{high}")
        for low, high in pairwise(["dgc_rate33", "dgc_rate50", "dgc", "dgc_rate83", "dgc_rate88"])
    ),
)
