"""What the networks of our recipes cost, counted beforehand: to run them all takes longer than one waits for a list.

``python -m dgconv.analysis.kept_costs`` counts them and writes the file; a test counts each anew and compares.
"""

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..train.recipe import MODEL_OPTIONS, RECIPES, Recipe, list_recipes, load_recipe
from .plan import Cost, DataFacts, count_cost, look_at_data

FILE = RECIPES / "costs.json"


def cost_of(recipe: Recipe, data: DataFacts | None = None) -> Cost:
    """As kept for its network, or else counted now, once for all recipes with the same one."""
    data = data or look_at_data(recipe)
    return kept_costs().get(describe_network(recipe, data)) or _count(
        Recipe(model=recipe.model, **_options(recipe)), replace(data, train_images=0)
    )


_count = cache(count_cost)


@cache
def kept_costs() -> dict[str, Cost]:
    """By what :func:`describe_network` says."""
    return {network: Cost(**cost) for network, cost in json.loads(FILE.read_text(encoding="utf-8")).items()}


def describe_network(recipe: Recipe, data: DataFacts) -> str:
    """Everything that decides the cost: a recipe that is changed has another network."""
    given = [f"{name}={value}" for name, value in _options(recipe).items() if value is not None]
    return ", ".join([recipe.model, f"{data.classes} classes", f"{data.side} px", *given])


def _options(recipe: Recipe) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in MODEL_OPTIONS}


def main() -> None:
    costs: dict[str, Cost] = {}
    for recipe in map(load_recipe, list_recipes()):
        data = look_at_data(recipe)
        network = describe_network(recipe, data)
        if network not in costs:
            costs[network] = count_cost(recipe, data)
    lines = [f"{json.dumps(network)}: {json.dumps(asdict(cost))}" for network, cost in costs.items()]
    Path(str(FILE)).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
