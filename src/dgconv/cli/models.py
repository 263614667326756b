"""The command that lists models."""

from dataclasses import asdict

from rich.console import Console
from rich.table import Column
from tyro.conf import Positional

from ..errors import UserError
from ..models import list_models
from ..models.pretrained import WHERE_TO_GET_THEM, ModelCard, list_cards
from ..text import print_table
from ._output import console, show


def models(pattern: Positional[str] = "*", pretrained: bool = False, json: bool = False) -> None:
    """List the models.

    Args:
        pattern: Shell pattern, such as 'resnet*'.
        pretrained: Only those that have weights, with the names and the errors of these.
        json: Print JSON instead of a list.
    """
    names = list_models(pattern, pretrained=pretrained)
    if not names:
        if pretrained and not list_cards():
            raise UserError(f"there are no trained weights here. {WHERE_TO_GET_THEM}")
        known = ", ".join(list_models(pretrained=pretrained)) or "none"
        raise UserError(f"no model {'with weights ' if pretrained else ''}matches {pattern!r}. Known: {known}")
    if not pretrained:
        show(names, json, lambda _: console.print("\n".join(names)))
        return
    cards = {weights: card for weights, card in list_cards().items() if card.model["name"] in names}
    listing = [{"weights": weights, **asdict(card)} for weights, card in cards.items()]
    show(listing, json, lambda _: print_weights(console, cards))


def print_weights(console: Console, cards: dict[str, ModelCard]) -> None:
    headings = ("weights", "model", "data", "top-1 error")
    rows = [[name, str(card.model["name"]), card.data, f"{card.error:.2f} %"] for name, card in cards.items()]
    columns = [Column(heading, justify="right" if heading == "top-1 error" else "left") for heading in headings]
    print_table(console, "Trained weights", columns, rows, less_needed=("data", "model"))
