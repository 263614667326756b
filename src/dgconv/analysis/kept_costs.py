"""What the networks of our recipes cost, counted beforehand: to run them all takes longer than one waits for a list.

``python -m reproduce costs`` in the repository counts them and writes the file; a test counts each anew and compares.
"""

import json
from functools import cache

from ..data import DataFacts
from ..train.recipe import Recipe
from ..train.recipe_files import RECIPES
from .plan import NetworkCost, count_cost

FILE = RECIPES / "costs.json"
_COUNTED: dict[str, NetworkCost] = {}


def cost_of(recipe: Recipe, data: DataFacts | None = None) -> NetworkCost:
    """What a recipe's network costs: as kept, or else counted now, once for all recipes with the same one."""
    data = data or recipe.data.facts()
    network = describe_network(recipe, data)
    if kept := kept_costs().get(network):
        return kept
    if network not in _COUNTED:
        _COUNTED[network] = count_cost(recipe, data)
    return _COUNTED[network]


@cache
def kept_costs() -> dict[str, NetworkCost]:
    """All costs that are kept, by what :func:`describe_network` says."""
    return {network: NetworkCost(**cost) for network, cost in json.loads(FILE.read_text(encoding="utf-8")).items()}


def describe_network(recipe: Recipe, data: DataFacts) -> str:
    """Everything that decides the cost: a recipe that is changed has another network."""
    given = [f"{name}={value}" for name, value in sorted(recipe.model.options.items())]
    return ", ".join([recipe.model.name, f"{data.classes} classes", f"{data.side} px", *given])
