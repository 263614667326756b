"""Recipes as TOML files: those that come with dgconv, with what the paper reports for them, and your own."""

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown_name
from ..files import read_whole
from ..values import LONGEST_TOML, load_toml, read_values
from .recipe import Recipe

RECIPES = resources.files("dgconv") / "recipes"


@dataclass(frozen=True)
class Reported:
    """What the paper reports for a recipe: errors in percent, MACs as printed, or the saving over the dense network."""

    where: str
    error: float | None = None
    top5_error: float | None = None
    macs: float | None = None
    saving: float | None = None
    note: str | None = None  # what to know before holding ours against it


def list_recipes(pattern: str = "*") -> list[str]:
    """Names of the recipes that come with dgconv and match a shell pattern, such as ``"cifar10_*"``."""
    names = [file.name.removesuffix(".toml") for file in RECIPES.iterdir() if file.name.endswith(".toml")]
    return sorted((name for name in names if fnmatch(name, pattern)), key=lambda name: name.split("_"))


def load_recipe(name: str | Path) -> Recipe:
    """A recipe of ours by name, or one of your own by the path of its TOML file.

    A file holds the tables ``[model]``, ``[data]`` and ``[training]`` with what differs from the defaults, and perhaps
    a table ``[reported]``.
    """
    values, file = _read(name)
    values.pop("reported", None)
    if "name" in values:
        raise UserError(f"{file}: the key 'name' is not allowed, a recipe is called like its file. Remove it")
    recipe = replace(Recipe.from_dict(values, file), name=Path(file).stem)
    try:
        recipe.model.check()
    except UserError as error:
        raise UserError(f"{file} [model]: {error}") from None
    return recipe


def reported_of(name: str | Path) -> Reported | None:
    """What the paper reports for a recipe; None where it reports nothing."""
    values, file = _read(name)
    return read_values(Reported, values["reported"], f"{file} [reported]") if "reported" in values else None


def reported_for(recipe: Recipe) -> Reported | None:
    """The paper's figures for a recipe, as long as nothing was changed about its network and data set."""
    if recipe.name not in list_recipes():
        return None
    original = load_recipe(recipe.name)
    same = (recipe.model, recipe.data.name) == (original.model, original.data.name)
    return reported_of(recipe.name) if same and recipe.data.image_size is None else None


def _read(name: str | Path) -> tuple[dict[str, Any], str]:
    """The contents of a recipe file, and how to call the file in a message."""
    if str(name).endswith(".toml"):
        path = Path(name).expanduser()
        try:
            content, file = read_whole(path, 4 * LONGEST_TOML), str(path)  # characters have up to 4 bytes
        except FileNotFoundError:
            raise UserError(f"{path}: no such file. Give a .toml file, or a name that 'dgconv recipes' lists") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    elif name in list_recipes():
        file = f"{name}.toml"
        content = (RECIPES / file).read_bytes()
    else:
        unknown = unknown_name("recipe", str(name), list_recipes())
        raise UserError(f"{unknown} 'dgconv recipes' lists all; a file of your own must end in .toml")
    try:
        return load_toml(content), file
    except ValueError as error:  # not TOML, or not UTF-8
        raise UserError(f"{file} is not a TOML file: {error}") from None
