"""The command line. Each command is a few lines over the library; wrong use exits with 2 and no traceback.

Which commands there are, and in which file, is listed in dgconv_command.py.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from tyro.conf import Positional

from dgconv_command import COMMANDS, reader_may_leave, run_command

from .cli_device import find_device
from .cli_output import console, make_console, show, show_each
from .data.load import refuse_unused_folder
from .errors import UserError
from .train import Recipe, Result, Stopped, distributed, evaluate, train_all
from .train.classes import load_data_of_run
from .train.recipe import list_recipes, load_recipe, reported_of
from .train_arguments import TrainRequest, parse_train, run_folders

PACKAGE = Path(__file__).parent
LESS = "Ask for less: a smaller --batch-size, --image-size or --examples, fewer --workers or networks at a time"
# What torch says of the machine's own memory, and of worker processes that had none or that the kernel ended for it.
NO_MEMORY = ("DefaultCPUAllocator", "DataLoader worker (pid", "MemoryError in DataLoader worker")
DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}


def train(request: TrainRequest) -> None:
    """What 'dgconv train' does; its arguments are in :mod:`dgconv.train_arguments`."""
    from .display import TrainingDisplay

    arguments, device = request.arguments, find_device(request.arguments.device)
    if arguments.dry_run:
        _print_plans(request.recipes, arguments.json)
        return
    with _process_group(device) as (device, is_first):
        progress = make_console(stderr=arguments.json, quiet=not is_first)
        display = TrainingDisplay(progress, [recipe.epochs for recipe in request.runs])
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
            _show_results(results, device, arguments.json)


@contextmanager
def _process_group(device: str) -> Iterator[tuple[str, bool]]:
    """The device of this process, and whether it is the first of those torchrun started, if it did."""
    if not distributed.started_by_torchrun():
        yield device, True
        return
    device = distributed.join(device)
    try:
        yield device, distributed.rank() == 0
    finally:
        distributed.leave()


def _print_plans(recipes: list[Recipe], json: bool) -> None:
    from .analysis.plan import plan_training
    from .display import print_plan

    plans = [plan_training(recipe) for recipe in recipes]
    for plan in plans:
        if plan.recipe.data_dir is not None and plan.data.source != "counted":
            plan.recipe.load_data()  # a folder that the training would refuse is refused here, too
    show_each(plans, json, lambda plan: plan.to_dict(), lambda plan: print_plan(console, plan))


def recipes(pattern: Positional[str] = "*", json: bool = False) -> None:
    """List the recipes, one for each row of the paper's tables and figures, with the reported numbers.

    Args:
        pattern: Shell pattern, such as 'cifar10_*'.
        json: Print JSON instead of a table.
    """
    from .analysis.kept_costs import cost_of
    from .analysis.plan import compare
    from .display import print_recipes

    if not list_recipes(pattern):
        raise UserError(f"no recipe matches {pattern!r}. Known: {', '.join(list_recipes())}")
    rows = []
    for name in list_recipes(pattern):
        recipe, reported = load_recipe(name), reported_of(name)
        cost = cost_of(recipe)
        rows.append((recipe, reported, cost, compare(cost, reported)))
    listing = [
        {
            "name": recipe.name,
            "model": recipe.model,
            "data": recipe.data,
            "epochs": recipe.epochs,
            "reported": reported and asdict(reported),
            "macs": cost.macs,
            "closer": agreement and asdict(agreement),
            "command": f"dgconv train {recipe.name}" + (" --data-dir DIR" if recipe.data != "digits" else ""),
        }
        for recipe, reported, cost, agreement in rows
    ]
    show(listing, json, lambda _: print_recipes(console, rows))


def eval(
    run: Positional[Path],
    pruning_rate: float | None = None,
    data_dir: str | None = None,
    skip_corrupt_images: bool = False,
    json: bool = False,
) -> None:
    """Evaluate a run on the test images of its data set: error, MACs and the measured pruning rate.

    Args:
        run: Run folder, or the name of published weights.
        pruning_rate: Prune at this rate instead of the trained one; batch norms are adapted on training images.
        data_dir: Folder of the data set, if it is no longer where it was.
        skip_corrupt_images: Leave corrupt images out; a run that was trained so does it anyway.
        json: Print JSON instead of a table.
    """
    from .analysis.rate import calibration_images, can_set_rate, set_rate
    from .models import load_model
    from .models.pretrained import find_run

    run = find_run(run)
    recipe = Recipe.of_run(run)
    if recipe is None:
        raise UserError(f"{run} was not trained here, so its data set is not known")
    refuse_unused_folder(data_dir, [recipe.data])
    recipe = replace(recipe, skip_corrupt_images=recipe.skip_corrupt_images or skip_corrupt_images)
    device = find_device()
    model, data = load_model(run, device), load_data_of_run(run, recipe, data_dir)
    if pruning_rate is not None:
        if not can_set_rate(model):
            name = model.config["name"]
            raise UserError(
                f"{name} has no gates that take a --pruning-rate, as _dgc and _dgcg models have. Leave it out"
            )
        set_rate(model, pruning_rate, calibration_images(data.train, device))
    _show_results([Result(model, data, evaluate(model, data.test, device=device), run)], device, json)


def macs(
    model: Positional[str] = "",
    paper: bool = False,
    convention: Literal["paper", "authors"] = "paper",
    num_classes: int | None = None,
    pruning_rate: float | None = None,
    heads: int | None = None,
    groups: int | None = None,
    input_size: tuple[int, int, int] | None = None,
    data_dir: str | None = None,
    json: bool = False,
) -> None:
    """Count multiply-accumulate operations, layer by layer.

    Args:
        model: Name of a model (see 'dgconv models'), a run folder, or the name of published weights.
        paper: Instead, set every figure the paper reports beside ours.
        convention: What counts: 'paper', or 'authors' for all that the authors' code adds up.
        num_classes: Classes of the model.
        pruning_rate: Share of the input channels each head leaves out.
        heads: Heads of each dynamic layer.
        groups: Groups of a _sgc model.
        input_size: Channels, height, width; default as the model is trained.
        data_dir: Folder of a run's data set, if it is no longer where it was; for costs that depend on the image.
        json: Print JSON instead of a table.
    """
    from .analysis.mac_rules import needs_images
    from .analysis.macs import count_macs
    from .analysis.paper import compare_with_paper
    from .analysis.summary import images_to_measure
    from .display import print_macs, print_paper_comparison
    from .models import create_model, load_model
    from .models.pretrained import find_run, list_cards
    from .models.storage import input_size_of
    from .pruning import what_is_left

    if paper:
        rows = compare_with_paper()
        show([row.to_dict() for row in rows], json, lambda _: print_paper_comparison(console, rows))
        return
    if not model:
        raise UserError("name a model or a run folder, or use --paper. 'dgconv models' lists the models")
    images = None
    options: dict[str, Any] = {"pruning_rate": pruning_rate, "heads": heads, "groups": groups}
    if Path(model).is_dir() or model in list_cards():
        if num_classes is not None or any(value is not None for value in options.values()):
            raise UserError(
                "--num-classes, --pruning-rate, --heads and --groups are for a model by name; a run is counted as it "
                f"was trained. For another rate: dgconv eval {model} --pruning-rate RATE"
            )
        run = find_run(Path(model))
        network, recipe = load_model(run), Recipe.of_run(run)
        if input_size is None and recipe and needs_images(network):
            refuse_unused_folder(data_dir, [recipe.data])
            images = images_to_measure(network, load_data_of_run(run, recipe, data_dir))
        input_size = input_size or input_size_of(run, network)
    else:
        network = create_model(model, num_classes=num_classes, **options)
    count = count_macs(what_is_left(network), input_size, convention, images)
    show(count.to_dict(), json, lambda _: print_macs(console, model, count))


def models(pattern: Positional[str] = "*", pretrained: bool = False, json: bool = False) -> None:
    """List the models.

    Args:
        pattern: Shell pattern, such as 'resnet*'.
        pretrained: Only those that have weights, with the names and the errors of these.
        json: Print JSON instead of a list.
    """
    from .display import print_weights
    from .models import list_models
    from .models.pretrained import list_cards

    names = list_models(pattern, pretrained=pretrained)
    if not names:
        known = ", ".join(list_models(pretrained=pretrained)) or "none"
        raise UserError(f"no model {'with weights ' if pretrained else ''}matches {pattern!r}. Known: {known}")
    if not pretrained:
        show(names, json, lambda _: console.print("\n".join(names)))
        return
    cards = {weights: card for weights, card in list_cards().items() if card.model["name"] in names}
    listing = [{"weights": weights, **asdict(card)} for weights, card in cards.items()]
    show(listing, json, lambda _: print_weights(console, cards))


def import_authors(
    file: Positional[Path],
    out: Positional[Path],
    stem: Literal["cifar", "imagenet"] | None = None,
    json: bool = False,
) -> None:
    """Read a checkpoint of the authors' code and write it as a model of ours.

    Args:
        file: The authors' .tar file.
        out: Folder to write, new or empty.
        stem: Stem of a CondenseNet, which the file does not tell; default cifar up to three stages.
        json: Print JSON instead of a line.
    """
    from .models import import_authors_checkpoint, save_model

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder; name another one")
    model = import_authors_checkpoint(file, stem=stem)
    save_model(model, out, imported_from=file.name)
    show(model.config, json, lambda _: console.print(f"{file} -> {out}: {model.config}", soft_wrap=True))


def _run(args: Sequence[str]) -> None:
    if args[:1] == ["train"]:  # apart, because its defaults depend on the recipe
        train(parse_train(args[1:]))
        return
    run_command({name: _command(*place) for name, place in COMMANDS.items()}, args)


def _command(module: str, name: str) -> Callable[..., Any]:
    return getattr(import_module(f"dgconv.{module}"), name)


def main(args: Sequence[str] | None = None) -> None:
    with distributed.exiting_at_once():
        _run_politely(args)


def _run_politely(args: Sequence[str] | None) -> None:
    try:
        with reader_may_leave():
            _run(sys.argv[1:] if args is None else args)
    except UserError as error:
        print(f"dgconv: {error}", file=sys.stderr)
        sys.exit(2)
    except Stopped as stopped:
        print(f"dgconv: {stopped}", file=sys.stderr)
        sys.exit(stopped.exit_status)
    except KeyboardInterrupt:
        print("dgconv: interrupted; a run folder keeps its last whole epoch", file=sys.stderr)
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        if not _is_lack_of_memory(error):
            raise
        print(f"dgconv: there is not enough memory: {_first_line(error)}. {LESS}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if not _is_the_users(error):
            raise
        where = os.fsdecode(error.filename) if error.filename else "a file could not be written"
        print(f"dgconv: {where}: {error.strerror}. Mend that, or name another place", file=sys.stderr)
        sys.exit(2)


def _is_lack_of_memory(error: Exception) -> bool:
    """Of the GPU or of the machine; for the latter torch has no error of its own."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY)


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0]
    return line[line.find("DefaultCPUAllocator") :].rstrip(".") if "DefaultCPUAllocator" in line else line.rstrip(".")


def _is_the_users(error: OSError) -> bool:
    """Whether it is about a file or a disk of the user's, and not about a part of dgconv that is missing."""
    if isinstance(error.filename, str | bytes):
        return not Path(os.fsdecode(error.filename)).absolute().is_relative_to(PACKAGE)
    return error.errno in DISK_TROUBLE


def _show_results(results: Sequence[Result], device: str, json: bool) -> None:
    from .analysis.summary import Summary, summarize
    from .display import print_summary

    def summary_of(result: Result) -> tuple[Summary, str, int]:
        evaluation = result.evaluation
        summary = summarize(
            result.model, result.data, error=evaluation.error, pruning_rate=evaluation.pruned_share, device=device
        )
        return replace(summary, test_images=evaluation.images), str(result.folder), evaluation.skipped

    show_each(
        [summary_of(result) for result in results],
        json,
        lambda shown: {"run": shown[1], **shown[0].to_dict(), **({"skipped_images": shown[2]} if shown[2] else {})},
        lambda shown: print_summary(console, *shown),
    )
