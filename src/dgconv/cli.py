"""The command line. Each command is a few lines over the library; wrong use exits with 2 and no traceback."""

import json as json_format
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional

from .errors import UserError
from .train.recipe import Recipe

console = Console(width=None if sys.stdout.isatty() else 120)
DIGITS = Recipe()


def train(recipe: OmitArgPrefixes[Recipe] = DIGITS, out: Path | None = None, json: bool = False) -> None:
    """Train a network into a run folder. Without arguments: a small CondenseNet-DGC on the embedded digits.

    Args:
        recipe: What to train, on what, and how.
        out: Run folder, new or empty; default runs/MODEL-DATA-N.
        json: Print JSON instead of a table.
    """
    from .display import TrainingDisplay
    from .train import train as run

    folder = out or _free_folder(Path("runs"), f"{recipe.model}-{recipe.data}")
    with TrainingDisplay(Console(stderr=True) if json else console, recipe.epochs) as display:
        result = run(
            recipe,
            folder,
            device=_device(),
            on_start=display.start,
            on_step=display.step,
            on_epoch=display.epoch,
        )
    _show_result(result.model, result.data, result.evaluation, folder, json)


def eval(run: Positional[Path], data_dir: str | None = None, json: bool = False) -> None:
    """Evaluate a run on the test images of its data set: error, MACs and the measured pruning rate.

    Args:
        run: Run folder.
        data_dir: Folder of the data set, if it is no longer where it was.
        json: Print JSON instead of a table.
    """
    from .models import load_model
    from .train import evaluate

    recipe = Recipe.of_run(run)
    if recipe is None:
        raise UserError(f"{run} was not trained here, so its data set is not known")
    model, data = load_model(run, _device()), recipe.load_data(data_dir)
    _show_result(model, data, evaluate(model, data.test, device=_device()), run, json)


def macs(
    model: Positional[str] = "",
    paper: bool = False,
    convention: Literal["paper", "authors"] = "paper",
    num_classes: int | None = None,
    pruning_rate: float | None = None,
    heads: int | None = None,
    groups: int | None = None,
    input_size: tuple[int, int, int] | None = None,
    json: bool = False,
) -> None:
    """Count multiply-accumulate operations, layer by layer.

    Args:
        model: Name of a model (see 'dgconv models') or a run folder.
        paper: Instead, set every figure the paper reports beside ours.
        convention: What counts: 'paper', or 'authors' for all that the authors' code adds up.
        num_classes: Classes of the model.
        pruning_rate: Share of the input channels each head leaves out.
        heads: Heads of each dynamic layer.
        groups: Groups of a _sgc model.
        input_size: Channels, height, width; default as the model is trained.
        json: Print JSON instead of a table.
    """
    from .analysis.macs import count_macs
    from .analysis.paper import compare_with_paper
    from .analysis.summary import images_to_measure
    from .display import print_macs, print_paper_comparison
    from .models import create_model, load_model

    if paper:
        rows = compare_with_paper()
        _show([row.to_dict() for row in rows], json, lambda _: print_paper_comparison(console, rows))
        return
    if not model:
        raise UserError("name a model or a run folder, or use --paper. 'dgconv models' lists the models")
    images = None
    if Path(model).is_dir():
        network, recipe = load_model(model), Recipe.of_run(Path(model))
        images = images_to_measure(network, recipe.load_data()) if recipe else None
    else:
        options: dict[str, Any] = {"pruning_rate": pruning_rate, "heads": heads, "groups": groups}
        network = create_model(model, num_classes=num_classes, **options)
    count = count_macs(network, input_size, convention, images)
    _show(count.to_dict(), json, lambda _: print_macs(console, model, count))


def models(pattern: Positional[str] = "*", json: bool = False) -> None:
    """List the models.

    Args:
        pattern: Shell pattern, such as 'resnet*'.
        json: Print JSON instead of a list.
    """
    from .models import list_models

    names = list_models(pattern)
    if not names:
        raise UserError(f"no model matches {pattern!r}. Known: {', '.join(list_models())}")
    _show(names, json, lambda _: console.print("\n".join(names)))


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
    save_model(out, model, imported_from=file.name)
    _show(model.config, json, lambda _: console.print(f"{file} -> {out}: {model.config}", soft_wrap=True))


def main(args: list[str] | None = None) -> None:
    commands: dict[str, Callable[..., Any]] = {
        "train": train,
        "eval": eval,
        "macs": macs,
        "models": models,
        "import-authors": import_authors,
    }
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="dgconv",
            description="Dynamic group convolution.",
            args=args,
            sort_subcommands=False,
        )
    except UserError as error:
        print(f"dgconv: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("dgconv: interrupted; a run folder keeps its last whole epoch", file=sys.stderr)
        sys.exit(130)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _free_folder(parent: Path, name: str) -> Path:
    number = 1
    while (folder := parent / f"{name}-{number}").exists():
        number += 1
    return folder


def _show_result(model: Any, data: Any, evaluation: Any, folder: Path, json: bool) -> None:
    from .analysis.summary import summarize
    from .display import print_summary

    summary = summarize(model, data, error=evaluation.error, pruning_rate=evaluation.pruned_share, device=_device())
    _show(
        {"run": str(folder), **summary.to_dict()},
        json,
        lambda _: print_summary(console, summary, str(folder)),
    )


def _show(value: Any, as_json: bool, show: Callable[[Any], Any]) -> None:
    if as_json:
        print(json_format.dumps(value, indent=2))
    else:
        show(value)
