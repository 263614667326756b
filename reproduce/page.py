"""The text of ``docs/results.md`` and of the result table in the README."""

from collections.abc import Iterable

from dgconv.models.pretrained import ModelCard
from dgconv.train.recipe import Recipe

from .claims import CLAIMS
from .claims import HEADINGS as CLAIM_HEADINGS
from .gates import ABOUT as GATES
from .gates import gates_table
from .groups import Group
from .markdown import table
from .record import as_text, changes_of
from .rows import Row, all_rows, other_rows, rows_for
from .study import HEADINGS as STUDY_HEADINGS
from .study import find_studies
from .wanted import CHANGES, TABLES, WantedTable, all_wanted, missing_runs

PAGE = "docs/results.md"

INTRO = """\
# Results

Written by `python -m reproduce` from the run records in [`results`](../results), config and metrics of every run,
nothing rounded. No figure here is typed by hand, and no record is left out.

- **Error** is the top-1 error on all test images after the last epoch (never the best epoch): the mean over seeds ±
  their standard deviation. Unfinished runs are named and enter no mean.
- **Last epochs** is the mean error over the last fifteenth of the epochs, again the mean over seeds. The learning rate
  is nearly nothing there; what makes one epoch differ from the next is mostly noise of the batch norms' statistics.
- **Best epoch** is the least error of any epoch, again the mean over seeds: chosen by the test images, so no fair
  figure. The authors' code reports it (`best_prec1`), and the paper's figures may well be of this kind.
- **Paper** is what the paper prints; many of its results are only points in a figure.
- **MACs** are those of one image in both conventions of counting (`dgconv.cost.macs`): at the target rate, and with
  one global threshold (DGC-G), once it is trained, as measured on test images. **Pruned** is the share of saliencies
  that was left out.
- **Time** is that of one training. Networks trained side by side on one GPU share it: alone, each would take less.
"""

HOW_TO_USE = """\
`dgconv.create_model(MODEL, pretrained=WEIGHTS)` loads them; the card beside each says what it is. `dgconv eval WEIGHTS
--data-dir DIR` measures the error again, and `explore`, `figures`, `report`, `export` and `macs` take WEIGHTS in the
place of a run folder, too. Each is the best seed of its recipe, chosen by the test images: what a recipe gives is its
mean above."""

HOW_TO_TRAIN = """\
`python -m reproduce train --data-dir DIR` trains all of these, several at a time on a GPU, in as many sittings as it
takes (`--stop-after MINUTES`); DIR holds `cifar10` and `cifar100`. `python -m reproduce add` then takes their records.
One by one:
"""

NOT_RUN = "<!-- not run: days, and data sets that the tests do not have -->"
TESTED = "<!-- tested as: {} --image-size 32 --dry-run -->"

SHOWN_FIRST = {
    "cifar10_condensenet50",
    *(f"cifar10_condensenet50_{form}" for form in ("sgc", "lgc", "dgc", "dgc_rate33")),
    *(f"cifar{classes}_condensenet86_{form}" for classes in (10, 100) for form in ("dgc", "dgcg")),
    "digits",
}


def readme_table(groups: list[Group]) -> str:
    """The main recipes as they are; what is missing, what was varied and how it was trained is on the page."""
    heading = ["recipe", "top-1 error", "seeds", "paper", "MACs", "dense"]
    rows = [
        [row.title, row.error, row.seeds, row.in_paper, row.macs("authors"), row.dense_macs("authors")]
        for row in all_rows(groups)
        if row.group and row.group.finished and row.recipe.name in SHOWN_FIRST and not row.group.changes
    ]
    missing = len(missing_runs(groups))
    runs = sum(len(wanted.seeds) for wanted in all_wanted()) + len(CHANGES)
    what = "The mean over seeds ± their standard deviation, after the last epoch; MACs as the authors count."
    link = f"[{PAGE}]({PAGE}) has every run and study, and the {missing} of {runs} runs that are missing."
    return f"{table(heading, rows)}\n\n{what}\n{link}"


def claims_section(groups: list[Group]) -> str:
    return table(CLAIM_HEADINGS, [claim.line(groups) for claim in CLAIMS], left=3)


def studies_section(groups: list[Group]) -> str:
    return "\n".join(
        f"### {study.title}\n\n{table(STUDY_HEADINGS, study.lines)}\n" for study in find_studies(groups)
    ).rstrip()


def results_page(groups: list[Group], cards: dict[str, ModelCard], pictures: str = "") -> str:
    studies = studies_section(groups)
    parts = [INTRO, *([f"{pictures}\n"] if pictures else []), *(_wanted_section(wanted, groups) for wanted in TABLES)]
    parts.append(f"## What the paper claims\n\n{claims_section(groups)}\n")
    if others := other_rows(groups):
        parts.append(f"## Other runs\n\nNot among the tables above, or changed.\n\n{_result_table(others)}\n")
    if studies:
        parts.append(f"## One factor at a time\n\n{studies}\n")
    if gates := gates_table(groups):
        parts.append(f"## How dynamic the gates are\n\n{GATES}\n\n{gates}\n")
    if trained := [row for row in all_rows(groups) if row.group and row.group.finished]:
        parts.append(f"## How they were trained\n\n{_training_table(trained)}\n")
    parts.append(f"## Missing\n\n{_missing(groups)}\n")
    if cards:
        parts.append(f"## Trained weights\n\n{_weights(cards)}\n")
    return "\n".join(parts)


def _wanted_section(wanted: WantedTable, groups: list[Group]) -> str:
    rows = [row for recipe in wanted.rows for row in rows_for(recipe, groups)]
    return f"## {wanted.title}\n\n{wanted.about}\n\n{_result_table(rows)}\n{_notes(rows)}"


def _result_table(rows: list[Row]) -> str:
    heading = [
        "recipe", "top-1 error", "by seed", "last epochs", "best epoch", "paper", "ours less the paper's",
        "MACs, `paper`", "MACs, `authors`", "dense, `authors`", "pruned",
    ]  # fmt: skip
    cells = [
        [
            row.title, row.error, row.by_seed, row.late, row.best, row.in_paper, row.against_paper,
            row.macs("paper"), row.macs("authors"), row.dense_macs("authors"), row.pruned,
        ]
        for row in rows
    ]  # fmt: skip
    return table(heading, cells)


def _notes(rows: list[Row]) -> str:
    """Where the paper's figures are from."""
    notes = []
    for name, reported in {row.recipe.run_name: row.reported for row in rows}.items():
        if reported and reported.error is not None:
            macs = f" at {reported.macs / 1e6:g}M MACs" if reported.macs else ""
            note = f"; {reported.note}" if reported.note else ""
            notes.append(f"- `{name}`: {reported.error:.2f} %{macs}, {reported.where}{note}.")
    return "\n" + "\n".join(notes) + "\n" if notes else ""


def _training_table(rows: list[Row]) -> str:
    heading = ["recipe", "seeds", "precision", "epochs", "batch", "time", "dgconv", "trained on"]
    cells = [
        [
            row.title, row.seeds, row.recipe.training.precision, str(row.recipe.training.epochs),
            str(row.recipe.training.batch_size), row.time,
            _once(record.version for record in row.group.finished), _trained_on(row),
        ]
        for row in rows
        if row.group
    ]  # fmt: skip
    return table(heading, cells)


def _missing(groups: list[Group]) -> str:
    """What to run for the tables to be whole."""
    lines: dict[str, list[int]] = {}
    for run in missing_runs(groups):
        lines.setdefault(_command(run), []).append(run.training.seed)
    if not lines:
        return "Nothing."
    commands = [f"{command} --seeds {' '.join(map(str, seeds))} --data-dir DIR" for command, seeds in lines.items()]
    first = {run.data.name: _command(run) for run in reversed(missing_runs(groups))}  # one for each data set
    return "\n".join([HOW_TO_TRAIN, NOT_RUN, *map(TESTED.format, first.values()), "```sh", *commands, "```"])


def _command(run: Recipe) -> str:
    changes = changes_of(run) | {"precision": run.training.precision}
    flags = [f" --{name.replace('_', '-')} {as_text(value)}" for name, value in changes.items()]
    return f"dgconv train {run.name}{''.join(flags)}"


def _weights(cards: dict[str, ModelCard]) -> str:
    heading = ["weights", "model", "data", "top-1 error", "MACs, `authors`", "parameters", "seed"]
    rows = [
        [
            f"`{name}`", f"`{card.model['name']}`", card.data, f"{card.error:.2f} %",
            f"{card.macs['authors'] / 1e6:.1f}M", f"{card.parameters / 1e6:.2f}M", str(card.seed),
        ]
        for name, card in cards.items()
    ]  # fmt: skip
    return f"{HOW_TO_USE}\n\n{table(heading, rows, left=3)}"


def _trained_on(row: Row) -> str:
    return _once(record.trained_on for record in row.group.finished) if row.group else ""


def _once(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))
