"""The command about what was found: records of runs, the pages written from them, and published weights."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Column

from .cli_output import console, show
from .errors import UserError
from .text import print_table

if TYPE_CHECKING:
    from .results.rows import Row


def results(
    add: tuple[Path, ...] = (),
    publish: Path | None = None,
    study: str | None = None,
    check: bool = False,
    unfinished: bool = False,
    data_dir: str | None = None,
    root: Path = Path("."),
    json: bool = False,
) -> None:
    """Write docs/results.md and the README's result table from the run records in results/, and show them.

    Args:
        add: Run folders whose small files (config.json, metrics.jsonl) to copy into results/ first.
        publish: Finished run whose weights to write into results/weights first, for create_model(pretrained=True).
        study: Only show what one changed setting did: the folder in results/ to compare with.
        check: Write nothing; exit with 1 if a page is not up to date.
        unfinished: Let --add take runs that are not finished; they are named, and enter no mean.
        data_dir: Folder of the data set, if it is no longer where it was when a run was trained.
        root: The checkout of dgconv to work in.
        json: Print JSON instead of a table.
    """
    from .results.checkout import Checkout
    from .results.publish import publish as publish_weights
    from .results.record import add_record
    from .results.rows import all_rows
    from .results.study import HEADINGS, find_base, study_of

    if check and (add or publish):
        raise UserError("--check writes nothing, so it cannot be used beside --add or --publish")
    checkout = Checkout(root)
    for run in add:
        _tell(f"{run} -> {add_record(run, checkout.results, data_dir=data_dir, unfinished=unfinished)}")
    if publish:
        _tell(f"{publish} -> {publish_weights(publish, checkout, data_dir)}")
    if check:
        if outdated := checkout.outdated_pages():
            names = ", ".join(str(path) for path in outdated)
            print(f"dgconv: not up to date: {names}; write them with 'dgconv results'", file=sys.stderr)
            sys.exit(1)
        return
    if study:
        found = study_of(find_base(study, checkout.groups), checkout.groups)
        show(found.to_dict(), json, lambda _: _print_table(found.title, HEADINGS, found.lines))
        return
    for path in checkout.write_pages():
        _tell(f"written: {path}")
    rows = all_rows(checkout.groups)
    show([row.to_dict() for row in rows], json, lambda _: _print_rows(rows))


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _print_rows(rows: "list[Row]") -> None:
    headings = ("recipe", "top-1 error", "seeds", "paper", "MACs,\n'paper'", "MACs,\n'authors'", "epochs")
    lines = [
        [
            row.title, row.error, row.seeds, row.in_paper, row.macs("paper"), row.macs("authors"),
            str(row.recipe.epochs),
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
