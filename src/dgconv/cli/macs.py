"""The command that counts MACs."""

from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Column, Table
from tyro.conf import Positional

from ..analysis.paper import ROWS, CountedFigure, compare_with_paper, needs_torch_pruning
from ..analysis.summary import images_to_measure
from ..cost import MacCount, count_macs, needs_images
from ..data.load import refuse_unused_folder
from ..errors import UserError
from ..models import create_model, load_model
from ..models.pretrained import find_run, list_cards
from ..models.storage import input_size_of
from ..pruning import what_is_left
from ..text import print_table
from ..train import Recipe
from ..train.classes import load_data_of_run
from ._output import console, millions, show

SAID_HERE = ("pruning_rate", "heads", "groups", "num_classes", "widths")  # by a flag, or not at all


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
        paper: Instead, set the MACs that the paper reports beside ours, for its tables and the points of its figures.
        convention: What counts: 'paper', or 'authors' for all that the authors' code adds up.
        num_classes: Classes of the model.
        pruning_rate: Share of the input channels each head leaves out.
        heads: Heads of each dynamic layer.
        groups: Groups of a _sgc model.
        input_size: Channels, height, width; default as the model is trained.
        data_dir: Folder of a run's data set, if it is no longer where it was; for costs that depend on the image.
        json: Print JSON instead of a table.
    """
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
            refuse_unused_folder(data_dir, [recipe.data.name])
            images = images_to_measure(network, load_data_of_run(run, recipe, data_dir))
        input_size = input_size or input_size_of(run, network)
    else:
        network = create_model(model, num_classes=num_classes, **options)
    count = count_macs(what_is_left(network), input_size, convention, images)
    show(count.to_dict(), json, lambda _: print_macs(console, model, count))


def print_macs(console: Console, name: str, count: MacCount) -> None:
    size = "x".join(map(str, count.input_size))
    table = Table(
        title=f"MACs of {name} at {size}, '{count.convention}' convention",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=False,
    )
    table.add_column("layer", no_wrap=True)
    table.add_column("kind")
    for heading in ("output", "kept", "MACs", "undivided"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in count.layers:
        kept = "" if layer.kept_share is None else f"{layer.kept_share:.3f}"
        shape = "x".join(map(str, layer.output))
        table.add_row(layer.name, layer.kind, shape, kept, millions(layer.macs), millions(layer.dense_macs))
    table.add_section()
    saving = f"{count.dense_macs / count.macs:.2f}x less" if count.macs < count.dense_macs else ""
    table.add_row("total", saving, "", "", millions(count.macs), millions(count.dense_macs))
    console.print(table)
    if any(layer.kept_share is not None for layer in count.layers) and not count.measured:
        console.print("Kept shares are those that the options of the layers say.")
    for row in ROWS:
        others = {option: value for option, value in row.options.items() if option not in SAID_HERE}
        if row.model == name and row.reported and others:
            told = ", ".join(f"{option}={value}" for option, value in others.items())
            console.print(f"'dgconv macs --paper' counts {row.label!r} with {told}, which gives another sum.")
    if count.uncounted:
        console.print(f"Not counted, no rule for: {', '.join(count.uncounted)}")


def print_paper_comparison(console: Console, rows: list[CountedFigure]) -> None:
    figures = ("reported", "'paper'", "'authors'", "difference")
    columns = [
        Column("model", min_width=20),
        *(Column(heading, justify="right") for heading in figures),
        Column("fits", min_width=8),
    ]
    lines: list[list[str]] = []
    for where, group in groupby(rows, lambda row: row.where):
        lines.append([where, *[""] * 5])
        for row in group:
            difference = "" if row.difference is None else f"{row.difference:+.2f} %"
            macs = [f"{row.paper:.3f}M", f"{row.authors:.3f}M"]
            if row.paper_saving and row.authors_saving:
                lines.append([f"  {row.label}", "", *macs, "", ""])
                saving = [f"{row.paper_saving:.3f}x", f"{row.authors_saving:.3f}x"]
                lines.append(["    saving over dense", row.reported, *saving, difference, row.fits])
            else:
                lines.append([f"  {row.label}", row.reported, *macs, difference, row.fits])
    print_table(console, "MACs, the paper's figures and ours", columns, lines, less_needed=())
    console.print("'paper' and 'authors' are the two ways to count, see dgconv.cost.macs. 'fits' says which of them")
    console.print("gives the reported figure; '(fit)': at a pruning rate and squeeze found by trying, no code exists.")
    console.print(
        "Pruned networks: where the papers do not tell how many channels of each layer they prune, at the rate"
    )
    console.print("that comes nearest to the reported figure, the same for all layers.")
    if left_out := needs_torch_pruning():
        console.print(f"Not counted without torch-pruning (pip install 'dgconv[pruning]'): {', '.join(left_out)}")
