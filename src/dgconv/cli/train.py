"""The command that trains: recipes by name, and a flag for every setting that overrules what they say."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, make_dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_type_hints

import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional, arg

from dgconv_command import wrapping_help

from ..analysis.plan import StepTime, TrainingPlan, plan_training, time_step
from ..data.load import refuse_unused_folder
from ..errors import UserError
from ..files import check_folder
from ..models._registry import all_options
from ..runs import RunFolder
from ..runs.leftovers import remove_if_empty
from ..text import PlainConsole
from ..train import Recipe, Stopped, TimeLimit, distributed, load_recipe, train_all
from ..train.recipe import ABOUT
from ..train.recipe_files import Reported
from ..train.tables import DataTable, TrainingTable
from ._device import find_device
from ._display import TrainingDisplay
from ._output import console, millions, show_each
from ._summary import show_results
from .recipes import reported_cost

DEFAULT_RECIPE = "digits"
UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"))
SMALL, FOR_LARGE_IMAGES = 64, "resnet18_dgc"  # pixels a side; a network that soon makes larger ones smaller

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainArguments:
    """What can be asked for besides the settings of a recipe."""

    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="[RECIPE ...]")] = ()
    """Names that 'dgconv recipes' lists, or .toml files of your own. The flags below apply to all of them."""
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
    """Only print model, MACs, steps, estimates of memory and time, and the schedule. Needs no data set; checks one."""
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


def run(args: Sequence[str]) -> None:
    train(parse_train(args))


def train(request: TrainRequest) -> None:
    """Train networks by recipes, each into a run folder. Without a recipe: a small CondenseNet-DGC on the digits."""
    arguments, device = request.arguments, find_device(request.arguments.device)
    if arguments.dry_run:
        _print_plans(request.recipes, device, arguments.json)
        return
    with process_group(device) as (device, is_first):
        progress = PlainConsole(stderr=arguments.json, quiet=not is_first)
        display = TrainingDisplay(progress, [recipe.training.epochs for recipe in request.runs])
        with display, run_folders(request) as jobs:
            try:
                results = train_all(
                    jobs,
                    device=device,
                    watcher=display,
                    resuming=bool(arguments.resume),
                    time_limit=request.time_limit,
                    side_by_side=arguments.side_by_side,
                )
            except Stopped as stopped:
                if is_first:
                    raise
                sys.exit(stopped.exit_status)  # the first one tells
        if is_first:
            show_results(results, device, arguments.json)


@contextmanager
def process_group(device: str) -> Iterator[tuple[str, bool]]:
    """The device of this process, and whether it is the first of those torchrun started, if it did."""
    if not distributed.started_by_torchrun():
        yield device, True
        return
    device = distributed.join(device)
    try:
        yield device, distributed.rank() == 0
    finally:
        distributed.leave()


# -- what was asked for ------------------------------------------------------------------------------------------


def parse_train(argv: Sequence[str]) -> TrainRequest:
    """Reads the arguments once for each recipe, with that recipe as the default: a flag overrules all of them."""
    first = next(takewhile(lambda argument: not argument.startswith("-"), argv), DEFAULT_RECIPE)
    arguments, recipe = _parse(load_recipe(first), argv)
    for flag in ("resume", "seeds"):
        if f"--{flag}" in argv and not getattr(arguments, flag):  # such as an empty variable of a script
            raise UserError(f"`{flag}` stands there with nothing behind it; name at least one, or leave it out")
    _check(arguments)
    limit = TimeLimit(arguments.stop_after) if arguments.stop_after is not None else None
    if arguments.resume:
        begun = [Recipe.from_dict(RunFolder(path).checkpoint.recipe, str(path)) for path in arguments.resume]
        recipes = [_parse(original, argv)[1] for original in begun]
        refuse_unused_folder(recipe.data.dir, [recipe.data.name for recipe in recipes])
        return TrainRequest(arguments, recipes, recipes, limit)
    originals = [load_recipe(name) for name in arguments.recipes] or [_default_recipe(recipe, argv)]
    recipes = [_named(_parse(original, argv)[1], original) for original in originals]
    refuse_unused_folder(recipe.data.dir, [recipe.data.name for recipe in recipes])
    runs = [recipe.changed(seed=s) for recipe in recipes for s in arguments.seeds or (recipe.training.seed,)]
    if arguments.out and len(runs) > 1:
        raise UserError(
            f"`out` names the folder of one network, but {len(runs)} are asked for. "
            "Leave it out, and each gets a folder in runs/, or train them one by one"
        )
    return TrainRequest(arguments, recipes, runs, limit)


def _parse(default: Recipe, argv: Sequence[str]) -> tuple[TrainArguments, Recipe]:
    """What the arguments say, the recipe as they change it."""
    with wrapping_help(argv):
        parsed: Any = tyro.cli(_arguments_class(default), args=argv, prog="dgconv train")
    chosen = {key: value for key, value in vars(parsed.settings).items() if value != default.get(key)}
    if "name" in chosen and chosen["name"] == default.name:
        del chosen["name"]
    recipe = default.changed(**chosen)
    recipe.model.check()
    return parsed, recipe


def _default_recipe(asked: Recipe, argv: Sequence[str]) -> Recipe:
    """What is trained if no recipe is named: the digits' network, or one that is made for larger images."""
    default = load_recipe(DEFAULT_RECIPE)
    names_a_model = any(argument.split("=")[0] == "--model" for argument in argv)
    if names_a_model or asked.data.name == default.data.name:
        return default
    side = asked.data.facts().side
    if side <= SMALL:
        return default
    log.warning("no `model` is named: %s is taken, made for images as large as %d x %d", FOR_LARGE_IMAGES, side, side)
    return default.changed(model=FOR_LARGE_IMAGES)


def flags() -> type:
    """All that the command takes, with the defaults of the recipe that it trains if none is named."""
    return _arguments_class(load_recipe(DEFAULT_RECIPE))


def _arguments_class(recipe: Recipe) -> type:
    kind = settings_class(recipe)
    settings = ("settings", OmitArgPrefixes[kind], field(default=kind()))  # type: ignore[valid-type, misc]
    arguments = make_dataclass("TrainArguments", [settings], bases=(TrainArguments,), frozen=True)
    arguments.__doc__ = train.__doc__
    return arguments


def settings_class(recipe: Recipe) -> type:
    """A dataclass with every setting there is, those of all models too; the defaults are those of a recipe."""
    kinds = get_type_hints(DataTable) | get_type_hints(TrainingTable) | {"data": str, "data_dir": str | None}
    about: dict[str, tuple[Any, str]] = {
        "name": (str, "Name of the recipe, and of its run folders."),
        "model": (str, "Name of the model, see 'dgconv models'."),
    }
    about |= {name: (kinds[name], setting.help) for name, setting in ABOUT.items()}
    for name, options in all_options().items():
        kind = Union[(*dict.fromkeys(option.kind for option in options), None)]  # type: ignore[valid-type]
        about[name] = (kind, f"{options[0].help.rstrip('.')}.")
    defaults = recipe.flat | {"name": recipe.name}
    return make_dataclass(
        "Settings",
        [(n, Annotated[kind, arg(help=words)], field(default=defaults.get(n))) for n, (kind, words) in about.items()],
        frozen=True,
    )


def _check(arguments: TrainArguments) -> None:
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise UserError(f"`seeds` must differ from each other, got {' '.join(map(str, arguments.seeds))}")
    if len(set(map(os.path.realpath, arguments.resume))) < len(arguments.resume):
        raise UserError("`resume` names a run folder twice")
    if arguments.resume and (arguments.recipes or arguments.seeds or arguments.out):
        raise UserError("`resume` goes on with a run as it was begun: name no recipe beside it, nor `seeds` or `out`")


def _named(recipe: Recipe, original: Recipe) -> Recipe:
    """The recipe without its name, if another model or data set makes it another one."""
    is_other = (recipe.model.name, recipe.data.name) != (original.model.name, original.data.name)
    return recipe.changed(name="") if is_other and recipe.name == original.name else recipe


# -- run folders -------------------------------------------------------------------------------------------------


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
    if distributed.started_by_torchrun():
        raise UserError("under torchrun name the run folder with `out`, so that all processes and a restart find it")
    chosen = []
    with ExitStack() as made:
        for recipe in request.runs:
            name = f"{recipe.run_name}-seed{recipe.training.seed}" if request.arguments.seeds else recipe.run_name
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


# -- dry runs ----------------------------------------------------------------------------------------------------


def _print_plans(recipes: list[Recipe], device: str, json: bool) -> None:
    plans = [plan_training(recipe) for recipe in recipes]
    for plan in plans:
        if plan.recipe.data.dir is not None and plan.data.source != "counted":
            plan.recipe.load_data()  # a folder that the training would refuse is refused here, too
    timed = [(plan, time_step(plan, device)) for plan in plans]
    show_each(
        timed,
        json,
        lambda shown: shown[0].to_dict() | {"time": asdict(shown[1])},
        lambda shown: print_plan(console, *shown),
    )


def print_plan(console: Console, plan: TrainingPlan, time: StepTime) -> None:
    recipe, data, cost, memory = plan.recipe, plan.data, plan.cost, plan.memory
    training = recipe.training
    table = Table(
        title=f"{recipe.run_name}: {recipe.model.name} on {recipe.data.name}",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        show_header=False,
    )
    table.add_row("parameters", millions(cost.parameters))
    for convention, macs in cost.macs.items():
        dense = f"{millions(cost.dense_macs[convention])} dense, {cost.saving(convention):.3f}x"
        table.add_row(f"MACs an image, '{convention}'", f"{millions(macs)}; {dense}")
    if plan.reported:
        table.add_row("reported", _reported_line(plan.reported))
    if plan.agreement:
        line = f"'{plan.agreement.convention}' comes closest, {plan.agreement.difference:+.2f} %"
        table.add_row("our MACs against the reported", line)
    if plan.reported and plan.reported.note:
        table.add_row("note", plan.reported.note)
    sources = {"known": "", "counted": ", counted", "assumed": ", taken for ImageNet; --data-dir has them counted"}
    shape = f"{data.classes} classes, {data.side} x {data.side}"
    table.add_row("training images", f"{data.train_images:,}, {shape}{sources[data.source]}")
    steps = (
        f"{plan.steps_per_epoch:,} an epoch, {plan.steps:,} in {training.epochs} epochs, batch {training.batch_size}"
    )
    table.add_row("steps", steps)
    parts = f"{_mebibytes(memory.activations)} activations, {_mebibytes(memory.state)} weights, gradients, momentum"
    table.add_row("memory of a step, estimated", f"{_mebibytes(memory.total)} ({training.precision}: {parts})")
    table.add_row(
        "time, estimated",
        f"{_duration(time.total)} here ({time.device}), {time.step:.2g} s a step; measured with {time.images} images, "
        "without reading and evaluating",
    )
    table.add_row("learning rate", f"{training.learning_rate:g}, down to 0 along half a cosine")
    for number, stage in enumerate(plan.stages):
        table.add_row("" if number else "schedule", f"{stage.epochs:.4g} epochs: {stage.what}")
    console.print(table)


def _reported_line(reported: Reported) -> str:
    figures = [f"{reported.error:.2f} % error"] if reported.error is not None else []
    figures += [f"{reported.top5_error:.2f} % top-5"] if reported.top5_error is not None else []
    figures += [f"{reported_cost(reported)} MACs"] if reported.macs is not None else []
    figures += [f"{reported_cost(reported)} fewer MACs"] if reported.saving is not None else []
    return ", ".join(figures) + f" ({reported.where})" if figures else reported.where


def _duration(seconds: float) -> str:
    size, name = next(((size, name) for size, name in UNITS if seconds >= 2 * size), (1, "seconds"))
    return f"about {max(1, round(seconds / size)):,} {name}"


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"
