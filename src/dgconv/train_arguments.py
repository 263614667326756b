"""The arguments of ``dgconv train``: recipes by name, and flags that overrule what they say."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from .data.load import refuse_unused_folder
from .errors import UserError
from .train.checkpoint import load_checkpoint
from .train.distributed import started_by_torchrun
from .train.folder_lock import remove_if_empty
from .train.recipe import Recipe, load_recipe
from .train.stop import TimeLimit
from .writable import check_folder

DEFAULT_RECIPE = "digits"


@dataclass(frozen=True)
class TrainArguments:
    """Train networks by recipes, each into a run folder. Without a recipe: a small CondenseNet-DGC on the digits."""

    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="[RECIPE ...]")] = ()
    """Names that 'dgconv recipes' lists, or .toml files of your own. The flags below apply to all of them."""
    recipe: OmitArgPrefixes[Recipe] = field(default_factory=lambda: load_recipe(DEFAULT_RECIPE))
    """What to train, on what, and how; the defaults shown are those of the first recipe."""
    seeds: tuple[int, ...] = ()
    """Train each recipe once for each of these seeds."""
    out: Path | None = None
    """Run folder, new or empty, for a single network; default runs/RECIPE-N."""
    resume: tuple[Path, ...] = ()
    """Run folders to go on with, instead of recipes. Refused where one is still trained."""
    side_by_side: int | None = None
    """Networks to train at a time; when one is done, the next begins. Default: 6 on a GPU, 1 on a CPU."""
    stop_after: float | None = None
    """Minutes after which to save and stop as Ctrl-C does, but with exit status 0; for a machine lent for a while."""
    dry_run: bool = False
    """Only print model, MACs, steps, an estimate of the memory and the schedule. Needs no data set, but checks one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    json: bool = False
    """Print JSON instead of tables."""


@dataclass(frozen=True)
class TrainRequest:
    """What was asked for: ``recipes`` with all flags applied, and ``runs``, each of them once for each seed."""

    arguments: TrainArguments
    recipes: list[Recipe]
    runs: list[Recipe]
    time_limit: TimeLimit | None = None  # from when it was asked for


def parse_train(argv: Sequence[str]) -> TrainRequest:
    """Reads the arguments once for each recipe, with that recipe as the default: a flag overrules all of them."""

    def parse(default: Recipe) -> TrainArguments:
        return tyro.cli(TrainArguments, default=TrainArguments(recipe=default), args=argv, prog="dgconv train")

    first = next(takewhile(lambda argument: not argument.startswith("-"), argv), DEFAULT_RECIPE)
    arguments = parse(load_recipe(first))
    for flag in ("resume", "seeds"):
        if f"--{flag}" in argv and not getattr(arguments, flag):  # such as an empty variable of a script
            raise UserError(f"--{flag} stands there with nothing behind it; name at least one, or leave it out")
    _check(arguments)
    limit = TimeLimit(arguments.stop_after) if arguments.stop_after is not None else None
    if arguments.resume:
        begun = [Recipe.from_dict(load_checkpoint(folder).recipe, str(folder)) for folder in arguments.resume]
        recipes = [parse(recipe).recipe for recipe in begun]
        refuse_unused_folder(arguments.recipe.data_dir, [recipe.data for recipe in recipes])
        return TrainRequest(arguments, recipes, recipes, limit)
    originals = [load_recipe(name) for name in arguments.recipes or (DEFAULT_RECIPE,)]
    recipes = [_named(parse(original).recipe, original) for original in originals]
    refuse_unused_folder(arguments.recipe.data_dir, [recipe.data for recipe in recipes])
    runs = [replace(recipe, seed=seed) for recipe in recipes for seed in arguments.seeds or (recipe.seed,)]
    if arguments.out and len(runs) > 1:
        raise UserError(
            f"--out names the folder of one network, but {len(runs)} are asked for. "
            "Leave it out, and each gets a folder in runs/, or train them one by one"
        )
    return TrainRequest(arguments, recipes, runs, limit)


@contextmanager
def run_folders(request: TrainRequest, parent: Path = Path("runs")) -> Iterator[list[tuple[Recipe, Path]]]:
    """Each network with its run folder: the one asked for, or the first free ``runs/RECIPE[-seedS]-N``.

    The latter are made at once, so that no other training chooses them; what is empty in the end goes again.
    """
    if request.arguments.resume:
        yield list(zip(request.runs, request.arguments.resume, strict=True))
        return
    if request.arguments.out:
        yield [(request.runs[0], request.arguments.out)]
        return
    if started_by_torchrun():
        raise UserError("under torchrun name the run folder with --out, so that all processes and a restart find it")
    chosen = []
    with ExitStack() as made:
        for recipe in request.runs:
            name = f"{recipe.run_name}-seed{recipe.seed}" if request.arguments.seeds else recipe.run_name
            chosen.append((recipe, made.enter_context(_new_folder(parent, name))))
        yield chosen


@contextmanager
def _new_folder(parent: Path, name: str) -> Iterator[Path]:
    parent, name = (parent / name).parent, (parent / name).name  # a recipe may be called a/b
    check_folder(parent)
    missing = [place for place in (parent, *parent.parents) if not place.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    folder = next(folder for number in count(1) if _make(folder := parent / f"{name}-{number}"))
    try:
        yield folder
    finally:
        remove_if_empty(folder)
        with suppress(OSError):
            for place in missing:
                place.rmdir()


def _make(folder: Path) -> bool:
    """False if it is there, perhaps since a moment ago."""
    try:
        folder.mkdir(parents=True)  # another training may just have removed an empty runs/
    except FileExistsError:
        return False
    return True


def _check(arguments: TrainArguments) -> None:
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise UserError(f"--seeds must differ from each other, got {' '.join(map(str, arguments.seeds))}")
    if len(set(map(os.path.realpath, arguments.resume))) < len(arguments.resume):
        raise UserError("--resume names a run folder twice")
    if arguments.resume and (arguments.recipes or arguments.seeds or arguments.out):
        raise UserError("--resume goes on with a run as it was begun: name no recipe beside it, nor --seeds or --out")


def _named(recipe: Recipe, original: Recipe) -> Recipe:
    """With another model or data set it is no longer the recipe of that name."""
    is_other = (recipe.model, recipe.data) != (original.model, original.data)
    return replace(recipe, name="") if is_other and recipe.name == original.name else recipe
