"""What the paper claims about its networks, each a comparison of two recipes, and whether our runs agree."""

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
    allowed: float = 0.0
    """Percent by which the error of ``better`` may be higher: claimed is that it is comparable, or what it loses."""

    def line(self, groups: list[Group]) -> list[str]:
        """The claim as text, in the order of ``HEADINGS``."""
        better, than = (_most_seeds(name, groups) for name in (self.better, self.than))
        what = f"{self.what}, at most {self.allowed:g} % worse" if self.allowed else self.what
        cells = [what, f"`{self.better}`", f"`{self.than}`"]
        if better is None or than is None:
            return [*cells, "", "missing"]
        delta, error = difference(than, better)
        spread = "" if error is None else f" ± {error:.2f}"
        return [*cells, f"{delta:+.2f}{spread}", _verdict(better, than, self.allowed)]


def _verdict(better: Group, than: Group, allowed: float) -> str:
    holds = "holds" if difference(than, better)[0] < allowed else "does not hold"
    is_sure = is_beyond_noise(than, better, allowed)
    if better.spread is None or than.spread is None:
        return f"{holds}, if a single seed spreads as others do" if is_sure else f"{holds}, too few seeds to be sure"
    if is_sure:
        return holds
    seeds = seeds_to_tell(than, better, allowed)
    return "undecided, within the noise" + (f"; {seeds} seeds of each might tell" if seeds else "")


def _most_seeds(name: str, groups: list[Group]) -> Group | None:
    finished = [group for group in groups_of(Wanted(name), groups) if group.finished]
    return max(finished, key=lambda group: len(group.finished), default=None)


COMPARABLE = 0.2  # the paper calls 29.3 % and 29.1 % comparable, and 25.4 % and 25.3 %


def _mobile(better: str, than: str) -> tuple[str, str]:
    return f"cifar10_mobilenetv2_{better}", f"cifar10_mobilenetv2_{than}"


CLAIMS = (
    *(
        Claim(what, f"{data}_condensenet50_{better}", f"{data}_condensenet50{than}")
        for what, better, than in (
            ("less work, lower error: DGC at 1/3 against the undivided network", "dgc_rate33", ""),
            ("dynamic groups against learned ones", "dgc", "_lgc"),
            ("dynamic groups against standard ones", "dgc", "_sgc"),
            ("learned groups against standard ones", "lgc", "_sgc"),
            ("dynamic groups against learned ones, at a half", "dgc_rate50", "_lgc_condensation2"),
            ("dynamic groups against standard ones, at a half", "dgc_rate50", "_sgc_groups2"),
            ("learned groups against standard ones, at a half", "lgc_condensation2", "_sgc_groups2"),
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
    Claim("two heads against one", "cifar10_condensenet50_dgc_heads2", "cifar10_condensenet50_dgc_heads1"),
    *(
        Claim("the error rises with the pruning rate", f"cifar10_condensenet50_{low}", f"cifar10_condensenet50_{high}")
        for low, high in pairwise(["dgc_rate33", "dgc_rate50", "dgc", "dgc_rate83", "dgc_rate88"])
    ),
    *(
        Claim("dynamic groups against learned ones", f"{network}_dgc", f"{network}_lgc")
        for network in ("cifar10_condensenet86", "cifar100_condensenet86")
    ),
    *(
        Claim(f"dynamic groups against {pruned}", f"{data}_condensenet86_dgc", f"{data}_{network}")
        for data in ("cifar10", "cifar100")
        for pruned, network in (
            ("a pruned VGG-16", "vgg16_l1"),
            ("a pruned VGG-19", "vgg19_ns"),
            ("a pruned ResNet-164", "resnet164_ns"),
            ("a pruned DenseNet-40, by NS", "densenet40_ns"),
        )
    ),
    *(
        Claim(f"dynamic groups against a pruned {title}", "cifar10_condensenet86_dgc", f"cifar10_{network}")
        for title, network in (
            ("ResNet-56, by L1", "resnet56_l1"),
            ("ResNet-56, by CP", "resnet56_cp"),
            ("ResNet-110, by L1", "resnet110_l1"),
            ("ResNet-110, by FPGM", "resnet110_fpgm"),
            ("DenseNet-40, by GAL", "densenet40_gal"),
            ("DenseNet-40, by GAL to 81M", "densenet40_gal_budget29"),
        )
    ),
    *(
        Claim(what, *_mobile(better, than))
        for what, better, than in (
            ("less work, lower error: DGC-1 against FLGC", "dgc_1", "flgc_groups2"),
            ("dynamic groups against standard ones", "dgc_1", "sgc_groups2"),
            ("less work, lower error: DGC-2 against FLGC", "dgc_2", "flgc_groups8"),
            ("less work, lower error: DGC-2 against SGC", "dgc_2", "sgc_groups8"),
            ("less work, lower error: DGC-3 against FLGC", "dgc_3", "flgc_groups8"),
            ("less work, lower error: DGC-3 against SGC", "dgc_3", "sgc_groups8"),
            *(
                (
                    f"fully learnable groups against standard ones, {number}",
                    f"flgc_groups{groups}",
                    f"sgc_groups{groups}",
                )
                for groups, number in ((2, "two"), (4, "four"), (8, "eight"))
            ),
        )
    ),
    *(
        Claim("as heads alone: DGC at rate 0 against the undivided network", f"{data}_dgc_rate0", data)
        for data in ("cifar10_condensenet50", "cifar100_condensenet50")
    ),
    *(
        Claim(f"dynamic groups against {title}", "imagenet_resnet18_dgc", f"imagenet_resnet18_{rival}")
        for title, rival in (
            ("SFP", "sfp"),
            ("NS", "ns"),
            ("DCP", "dcp"),
            ("FPGM", "fpgm"),
            ("LCCN", "lccn"),
            ("FBS", "fbs"),
            ("CGNet", "cgnet"),
        )
    ),
    *(
        Claim(f"dynamic groups against {title}", "imagenet_condensenet74_dgc", f"imagenet_condensenet74_{rival}")
        for title, rival in (("standard ones", "sgc"), ("learned ones", "lgc"))
    ),
    Claim("DGC is comparable with FLGC", "imagenet_condensenet74_dgc", "imagenet_condensenet74_flgc", COMPARABLE),
    Claim("a fifth less work: DGC against dense", "imagenet_mobilenetv2_dgc", "imagenet_mobilenetv2", 1.3),
    *(
        Claim(
            f"half the work: MobileNetV2-DGC is comparable with {title}", "imagenet_mobilenetv2_dgc", than, COMPARABLE
        )
        for title, than in (("MobileNetV1", "imagenet_mobilenetv1"), ("ShuffleNet", "imagenet_shufflenet"))
    ),
    Claim("one global threshold against one a head", "imagenet_condensenet74_dgcg", "imagenet_condensenet74_dgc"),
    Claim("the angle loss with one threshold", "imagenet_condensenet74_dgcg", "imagenet_condensenet74_dgcg_angle0"),
)
