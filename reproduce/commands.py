"""What can be done with the records of runs: shown, added to, published, compared; and the pages written from them."""

import json as json_format
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Column
from tyro.conf import Positional

from dgconv.analysis.kept_costs import FILE, describe_network
from dgconv.analysis.plan import count_cost
from dgconv.cli._output import console, show
from dgconv.errors import UserError, visible
from dgconv.files import write_atomically
from dgconv.text import print_table
from dgconv.train import list_recipes, load_recipe

from .blocks import Session, with_outputs
from .checkout import Checkout
from .publish import publish as publish_weights
from .record import add_record
from .rows import Row, all_rows
from .study import HEADINGS, find_base, study_of

HERE = Path(__file__).resolve().parents[1]


def pages(check: bool = False, root: Path = HERE, json: bool = False) -> None:
    """Write docs/results.md and every marked section of README and docs from records and benchmarks, and show results.

    Args:
        check: Write nothing; exit with 1 if a page is not up to date.
        root: The checkout to work in.
        json: Print JSON instead of a table.
    """
    checkout = Checkout(root)
    if check:
        if outdated := checkout.outdated_pages():
            names = ", ".join(str(path) for path in outdated)
            print(f"not up to date: {names}; write them with 'python -m reproduce'", file=sys.stderr)
            sys.exit(1)
        return
    for path in checkout.write_pages():
        _tell(f"written: {path}")
    rows = all_rows(checkout.groups)
    show([row.to_dict() for row in rows], json, lambda _: _print_rows(rows))


def add(
    runs: Positional[tuple[Path, ...]],
    unfinished: bool = False,
    data_dir: str | None = None,
    root: Path = HERE,
) -> None:
    """Copy the small files of runs into results/, measure what only the trained networks tell, and write the pages.

    Args:
        runs: Run folders.
        unfinished: Take runs that are not finished, too; they are named, and enter no mean.
        data_dir: Folder of the data set, if it is no longer where it was when a run was trained.
        root: The checkout to work in.
    """
    if not runs:
        raise UserError("name at least one run folder")
    for run in runs:
        _tell(f"{run} -> {add_record(run, Checkout(root).results, data_dir=data_dir, unfinished=unfinished)}")
    pages(root=root)


def publish(run: Positional[Path], data_dir: str | None = None, root: Path = HERE) -> None:
    """Write the weights of a finished run into results/weights, with a card, and write the pages.

    Args:
        run: Run folder, whose record is in results/.
        data_dir: Folder of the data set, if it is no longer where it was when the run was trained.
        root: The checkout to work in.
    """
    _tell(f"{run} -> {publish_weights(run, Checkout(root), data_dir)}")
    pages(root=root)


def study(base: Positional[str], root: Path = HERE, json: bool = False) -> None:
    """Show what one changed setting did.

    Args:
        base: What to compare with: a folder in results/, such as digits or digits/epochs=5.
        root: The checkout to work in.
        json: Print JSON instead of a table.
    """
    groups = Checkout(root).groups
    found = study_of(find_base(base, groups), groups)
    show(found.to_dict(), json, lambda _: _print_table(found.title, HEADINGS, found.lines))


def costs() -> None:
    """Count what the networks of our recipes cost, and keep it for 'dgconv recipes'."""
    counted = {}
    for recipe in map(load_recipe, list_recipes()):
        data = recipe.data.facts()
        network = describe_network(recipe, data)
        if network not in counted:
            counted[network] = count_cost(recipe, data)
    lines = [f"{json_format.dumps(name)}: {json_format.dumps(asdict(cost))}" for name, cost in counted.items()]
    Path(str(FILE)).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    _tell(f"{len(counted)} networks -> {FILE}")


def outputs(pages: Positional[tuple[Path, ...]], work: Path | None = None) -> None:
    """Run the code blocks of pages, and write below each what it prints; takes minutes, for networks are trained.

    Args:
        pages: Pages of the site, in the order in which they are read: what the first one trains, others use.
        work: Folder to run them in, to go on from what is there; default a new one.
    """
    if not pages:
        raise UserError("name at least one page, such as docs/start.md")
    with TemporaryDirectory() as folder:
        for page in pages:
            session = Session((work or Path(folder)).absolute())
            write_atomically(page, with_outputs(page.read_text(encoding="utf-8"), session).encode())
            _tell(f"written: {page}")


def _tell(text: str) -> None:
    print(visible(text), file=sys.stderr)


def _print_rows(rows: list[Row]) -> None:
    headings = ("recipe", "top-1 error", "seeds", "paper", "MACs,\n'paper'", "MACs,\n'authors'", "epochs")
    lines = [
        [
            row.title, row.error, row.seeds, row.in_paper, row.macs("paper"), row.macs("authors"),
            str(row.recipe.training.epochs),
        ]
        for row in rows
    ]  # fmt: skip
    _print_table("Results", headings, lines, less_needed=("epochs", "MACs,\n'authors'", "seeds"))


def _print_table(title: str, headings: Sequence[str], lines: list[list[str]], less_needed: Sequence[str] = ()) -> None:
    rows = [[cell.replace("`", "") for cell in line] for line in lines]
    longest_name = max(len(word) for row in rows for word in row[0].split())
    columns = [
        Column(heading, justify="right" if number else "left", min_width=None if number else longest_name)
        for number, heading in enumerate(headings)
    ]
    columns[1].min_width = len("10.00 % ± 0.10")  # what is said of unfinished runs is longer, and wraps
    print_table(console, title.replace("`", ""), columns, rows, less_needed)
