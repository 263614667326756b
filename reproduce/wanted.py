"""The runs that the result pages are to show, table by table; what has no record yet is listed as missing."""

from dataclasses import dataclass
from typing import Any

from dgconv.train.recipe import Recipe
from dgconv.train.recipe_files import load_recipe
from dgconv.train.tables import Precision

from .groups import Group

PRECISION: Precision = "bfloat16"  # of what has no record yet: only runs of one precision are compared
SEEDS = (0, 1, 2)  # of the results that others are measured by
ONE_SEED = (0,)


@dataclass(frozen=True)
class Wanted:
    recipe: str
    seeds: tuple[int, ...] = ONE_SEED


@dataclass(frozen=True)
class WantedChange:
    """A run for the study of what matters: a recipe with one setting changed, and one seed."""

    recipe: str
    setting: str
    value: Any

    def applied(self, base: Recipe) -> Recipe:
        return base.changed(**{self.setting: self.value})

    def is_done(self, base: Recipe, groups: list[Group]) -> bool:
        """Whether there is a finished run that differs from the base in this setting alone."""
        changed = self.applied(base)
        return any(group.finished and not changed.differences(group.recipe) for group in groups)


@dataclass(frozen=True)
class WantedTable:
    title: str
    about: str
    rows: tuple[Wanted, ...]


def _condensenet50(data: str) -> tuple[Wanted, ...]:
    name = f"{data}_condensenet50"
    return (
        Wanted(name, SEEDS),
        Wanted(f"{name}_sgc", SEEDS),
        Wanted(f"{name}_lgc", SEEDS),
        Wanted(f"{name}_dgc", SEEDS),
        Wanted(f"{name}_dgcg"),
        Wanted(f"{name}_sgc_groups2"),
        Wanted(f"{name}_lgc_condensation2"),
        *(Wanted(f"{name}_dgc_{rate}") for rate in ("rate88", "rate83", "rate50")),
        Wanted(f"{name}_dgc_rate33", SEEDS),
        Wanted(f"{name}_dgc_rate0"),
    )


def _recipes(*names: str) -> tuple[Wanted, ...]:
    return tuple(map(Wanted, names))


TABLES = (
    WantedTable(
        "CondenseNet-50 on CIFAR-10",
        "Undivided, with standard (SGC), learned (LGC) and dynamic group convolution, and DGC-G with one threshold.",
        _condensenet50("cifar10"),
    ),
    WantedTable("CondenseNet-50 on CIFAR-100", "The same.", _condensenet50("cifar100")),
    WantedTable(
        "CondenseNet-86",
        "Pruning rate 3/4, 300 epochs.",
        tuple(
            Wanted(f"{data}_condensenet86_{method}")
            for data in ("cifar10", "cifar100")
            for method in ("lgc", "dgc", "dgcg")
        ),
    ),
    WantedTable(
        "With cutout, on CIFAR-10",
        "Ours, not the paper's: the same networks, MACs and epochs, and a square blanked in each training image.",
        (
            Wanted("cifar10_condensenet50_cutout", SEEDS),
            Wanted("cifar10_condensenet50_dgc_rate33_cutout", SEEDS),
            Wanted("cifar10_condensenet86_dgc_cutout"),
        ),
    ),
    WantedTable(
        "With eight heads, on CIFAR-10",
        "The same networks and epochs with 8 heads, at both rates; the paper has them in a figure, at 3/4. Each head "
        "has a generator, so that 8 cost a little more MACs than 4.",
        (
            Wanted("cifar10_condensenet50_dgc_heads8", SEEDS),
            Wanted("cifar10_condensenet50_dgc_rate33_heads8", SEEDS),
        ),
    ),
    WantedTable(
        "MobileNetV2 on CIFAR-10",
        "With standard (SGC) and fully learnable (FLGC) group convolution, and DGC-1, -2 and -3 at pruning rate 0.65.",
        _recipes(
            *(f"cifar10_mobilenetv2_{method}_groups{groups}" for method in ("sgc", "flgc") for groups in (2, 4, 8)),
            *(f"cifar10_mobilenetv2_dgc_{number}" for number in (1, 2, 3)),
        ),
    ),
    WantedTable(
        "Pruned networks on CIFAR",
        "Those of the appendix, trained by one recipe of 160 epochs.",
        _recipes(
            *(
                f"{data}_{network}"
                for network in ("vgg16_l1", "vgg19_ns", "resnet164_ns", "densenet40_ns")
                for data in ("cifar10", "cifar100")
            ),
            *(f"cifar10_{network}" for network in ("resnet56_l1", "resnet56_cp", "resnet110_l1", "resnet110_fpgm")),
            *(f"cifar10_densenet40_gal{less}" for less in ("", "_budget29")),
        ),
    ),
    WantedTable(
        "ResNet-18 on ImageNet",
        "Dense, pruned, with dynamic methods, and with DGC at pruning rate 0.55.",
        _recipes(
            "imagenet_resnet18",
            *(f"imagenet_resnet18_{method}" for method in ("sfp", "ns", "dcp", "fpgm")),
            *(f"imagenet_resnet18_{method}" for method in ("lccn", "fbs", "cgnet", "dgc", "dgcg")),
        ),
    ),
    WantedTable(
        "Efficient networks on ImageNet",
        "CondenseNet-74 is trained for 120 epochs, the others for 150.",
        _recipes(
            *(f"imagenet_{name}" for name in ("mobilenetv1", "shufflenet", "nasneta", "nasnetb", "nasnetc", "igcv3")),
            *(f"imagenet_mobilenetv2{method}" for method in ("", "_dgc")),
            *(f"imagenet_condensenet74_{method}" for method in ("lgc", "sgc", "flgc", "dgc", "dgcg", "dgcg_angle0")),
        ),
    ),
    WantedTable(
        "How many heads",
        "CondenseNet-50-DGC on CIFAR-10 at pruning rate 3/4 with 1, 2, 4, 8 and 16 heads. The paper has up to 8, and "
        "finds 4 the best.",
        (
            Wanted("cifar10_condensenet50_dgc_heads1"),
            Wanted("cifar10_condensenet50_dgc_heads2"),
            Wanted("cifar10_condensenet50_dgc", SEEDS),
            Wanted("cifar10_condensenet50_dgc_heads8", SEEDS),
            Wanted("cifar10_condensenet50_dgc_heads16"),
        ),
    ),
    WantedTable(
        "How much to leave out",
        "CondenseNet-50-DGC on CIFAR-10 with 4 heads at pruning rates 1/3, 1/2, 3/4, 5/6 and 7/8. "
        "The paper finds the error to rise with the rate.",
        (
            Wanted("cifar10_condensenet50_dgc_rate33", SEEDS),
            Wanted("cifar10_condensenet50_dgc_rate50"),
            Wanted("cifar10_condensenet50_dgc", SEEDS),
            Wanted("cifar10_condensenet50_dgc_rate83"),
            Wanted("cifar10_condensenet50_dgc_rate88"),
        ),
    ),
)


CHANGES = tuple(
    WantedChange(recipe, setting, value)
    for recipe, also in (
        ("cifar10_condensenet50_dgc", {}),
        ("cifar10_condensenet50_dgc_rate33", {"keep_rule": "round"}),  # at 3/4 both rules keep as many
    )
    for setting, value in {
        "generator_weight_decay": 0.0,
        "lasso": "paper",
        "lasso_weight": 0.0,
        "per_head_init": False,
        "halve_squeeze": False,
        "ramp_end": 0.5,
        "precision": "float32",
        **also,
    }.items()
)


def all_wanted() -> list[Wanted]:
    """Each recipe once."""
    return list({row.recipe: row for table in TABLES for row in table.rows}.values())


def groups_of(wanted: Wanted, groups: list[Group]) -> list[Group]:
    """The runs of a recipe as it is, one group for each precision."""
    return [group for group in groups if group.name == wanted.recipe and not group.changes]


def missing_seeds(wanted: Wanted, groups: list[Group]) -> list[int]:
    """Seeds to train until one precision has as many as are wanted; other seeds than the wanted ones count too."""
    done = max((set(group.errors) for group in groups_of(wanted, groups)), key=len, default=set())
    left = [seed for seed in wanted.seeds if seed not in done]
    return left[: max(0, len(wanted.seeds) - len(done))]


def missing_runs(groups: list[Group]) -> list[Recipe]:
    """What to train until nothing is missing: those of the tables, and then those of the study."""
    runs = []
    for wanted in all_wanted():
        base = _as_recorded(wanted.recipe, groups)
        runs += [base.changed(seed=seed) for seed in missing_seeds(wanted, groups)]
    for change in CHANGES:
        base = _as_recorded(change.recipe, groups)
        if not change.is_done(base, groups):
            runs.append(change.applied(base))
    return runs


def _as_recorded(name: str, groups: list[Group]) -> Recipe:
    """A recipe in the precision in which it has the most seeds."""
    finished = [group for group in groups_of(Wanted(name), groups) if group.finished]
    found = max(finished, key=lambda group: len(group.finished), default=None)
    return load_recipe(name).changed(precision=found.recipe.training.precision if found else PRECISION)
