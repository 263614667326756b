"""Recipes: whatever a TOML file says, it is refused, or it is read as what it says."""

import json
import tomllib
from functools import cache
from random import Random
from typing import Any

from dgconv.train import list_recipes, load_recipe
from dgconv.train.recipe import Recipe
from dgconv.train.recipe_files import RECIPES, reported_of
from tests.fuzz.damage import Files, damage, folder_of, restore, store
from tests.fuzz.outcome import Wrong
from tests.fuzz.values import change_value

NAME = "recipe.toml"
WORDS = (
    *(b"[model]", b"[data]", b"[training]", b"[[a]]", b"a.b.c = 1\n", b'"""', b"'''"),
    *(b"inf", b"nan", b"1979-05-27", b"{", b"["),
)


@cache
def _texts() -> list[str]:
    return [*((RECIPES / f"{name}.toml").read_text() for name in list_recipes()), _toml(Recipe().to_dict())]


def make(rng: Random) -> Files:
    text = rng.choice(_texts())
    if rng.random() < 0.7:
        values = tomllib.loads(text)
        for _ in range(rng.choice((1, 1, 2, 4))):
            values = change_value(values, rng)
        text = _toml(values)
    content = text.encode(errors="surrogatepass")
    return {NAME: damage(content, rng, WORDS) if rng.random() < 0.4 else content}


def run(files: Files) -> str:
    with folder_of(files) as folder:
        reported_of(folder / NAME)
        recipe = load_recipe(folder / NAME)
    if Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())), "itself").differences(recipe):
        raise Wrong(f"{recipe} is another one once it was written down")
    return "accepted"


def _toml(values: Any) -> str:
    """Tables as TOML has them, if values are tables at all."""
    if not isinstance(values, dict):
        return _value(values)
    lines = [f"{json.dumps(key)} = {_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, table in values.items():
        if isinstance(table, dict):
            lines += [f"[{json.dumps(key)}]", *(f"{json.dumps(name)} = {_value(item)}" for name, item in table.items())]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return '"none"' if value is None else json.dumps(value)


__all__ = ["make", "restore", "run", "store"]
