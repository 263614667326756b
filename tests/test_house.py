"""Concepts have one place: methods their records, run folders their names."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from dgconv.cli.train import settings_class
from dgconv.layers.method import METHODS, layer_methods
from dgconv.runs import names
from dgconv.train import Recipe

SOURCE = Path(__file__).resolve().parents[1] / "src"
FILE_NAMES = [getattr(names, name) for name in ("CONFIG", "METRICS", "WEIGHTS", "BEST", "CHECKPOINT", "DIVERGED")]


def files_with(pattern: str) -> list[str]:
    paths = sorted(SOURCE.rglob("*.py"))
    return [str(path.relative_to(SOURCE)) for path in paths if re.search(pattern, path.read_text(), re.IGNORECASE)]


def test_a_rival_is_named_in_few_files():
    """Its layer with the record, the package that exports it, and perhaps a rule that makes it fast."""
    assert len(files_with(r"cgnet|channel_?gating")) <= 3


@pytest.mark.parametrize("name", FILE_NAMES)
def test_the_files_of_a_run_folder_are_named_in_one_package(name):
    assert all(file.startswith("dgconv/runs/") for file in files_with(rf"\b{re.escape(name)}\b"))


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_record_is_whole(method):
    assert method.title
    assert method.how_it_runs
    for option in method.choices.values():
        assert option.help, f"the docstring of {method.make.__name__} does not tell what {option.name} is"
    if not method.prunes:
        assert method.macs is not None
        assert method.knob is not None
        assert method.knob.option in method.options


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_option_is_a_setting_of_recipes_and_a_flag(method):
    model = {"model": "resnet20", "prune": method.name} if method.prunes else {"model": f"resnet20_{method.name}"}
    given = {option.name: option.default for option in method.choices.values() if option.default is not None}
    recipe = Recipe.of(**model, **given)
    assert given.items() <= recipe.build_model(10).config.items()
    assert method.choices.keys() <= {field.name for field in fields(settings_class(recipe))}


def test_there_are_methods_of_both_kinds():
    assert {"dgc", "dgcg", "sgc"} <= set(layer_methods())
    assert {"l1", "ns"} <= METHODS.keys() - layer_methods().keys()
