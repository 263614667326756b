"""The command that lists recipes."""

from dataclasses import asdict

from rich.console import Console
from rich.table import Column
from tyro.conf import Positional

from ..analysis.kept_costs import cost_of
from ..analysis.plan import Agreement, NetworkCost, agreement_with
from ..data import find_data
from ..errors import UserError
from ..text import print_table
from ..train import Recipe, list_recipes, load_recipe
from ..train.recipe_files import Reported, reported_of
from ._output import console, millions, show


def recipes(pattern: Positional[str] = "*", json: bool = False) -> None:
    """List the recipes, one for each row of the paper's tables and figures, with the reported numbers.

    Args:
        pattern: Shell pattern, such as 'cifar10_*'.
        json: Print JSON instead of a table.
    """
    if not list_recipes(pattern):
        raise UserError(f"no recipe matches {pattern!r}. Known: {', '.join(list_recipes())}")
    rows = []
    for name in list_recipes(pattern):
        recipe, reported = load_recipe(name), reported_of(name)
        cost = cost_of(recipe)
        rows.append((recipe, reported, cost, agreement_with(cost, reported)))
    listing = [
        {
            "name": recipe.name,
            "model": recipe.model.name,
            "data": recipe.data.name,
            "epochs": recipe.training.epochs,
            "reported": reported and asdict(reported),
            "macs": cost.macs,
            "closer": agreement and asdict(agreement),
            "command": f"dgconv train {recipe.name}" + (" --data-dir DIR" if find_data(recipe.data.name).needs else ""),
        }
        for recipe, reported, cost, agreement in rows
    ]
    show(listing, json, lambda _: print_recipes(console, rows))


def print_recipes(console: Console, rows: list[tuple[Recipe, Reported | None, NetworkCost, Agreement | None]]) -> None:
    columns = [
        Column("name", min_width=34),
        *map(Column, ("model", "data")),
        *(Column(heading, justify="right") for heading in ("epochs", "reported\nerror", "reported\nMACs", "our\nMACs")),
        Column("counted\nas"),
    ]
    lines = []
    for recipe, reported, cost, agreement in rows:
        convention = agreement.convention if agreement else "paper"
        error = macs = ""
        ours = millions(cost.macs[convention])
        if reported:
            error = "plotted" if reported.error is None else f"{reported.error:.2f} %"
            macs = reported_cost(reported)
        if reported and reported.saving:
            ours = f"{cost.saving(convention):.3f}x"
        lines.append(
            [
                recipe.name,
                recipe.model.name,
                recipe.data.name,
                str(recipe.training.epochs),
                error,
                macs,
                ours,
                convention,
            ]
        )
    title = "Recipes, and what the paper reports for them"
    print_table(console, title, columns, lines, less_needed=("model", "data", "epochs", "counted\nas"))
    console.print("An x is a saving over the dense network. Plotted: in a figure, without a printed number.")
    console.print("Train one with 'dgconv train NAME --data-dir DIR'; add --dry-run to see first what it takes.")


def reported_cost(reported: Reported) -> str:
    if reported.macs is not None:
        return f"{reported.macs / 1e6:g}M"
    return f"{reported.saving:.2f}x" if reported.saving is not None else ""
