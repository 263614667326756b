"""The library names arguments, the command line shows flags: neither has the other's words."""

import ast
import logging
import re
from pathlib import Path

import pytest

import dgconv
from dgconv.cli import main, told, with_flags
from dgconv.errors import UserError

LIBRARY = Path(dgconv.__file__).parent


def strings_in(file):
    return [
        node.value
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_no_text_of_the_library_names_a_flag():
    files = [file for file in LIBRARY.rglob("*.py") if not file.is_relative_to(LIBRARY / "cli")]
    assert len(files) > 100
    found = {
        (str(file.relative_to(LIBRARY)), text)
        for file in files
        for text in strings_in(file)
        if re.search("--[a-z]", text)
    }
    assert not found


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("give `data_dir`, or leave `mac_budget` out", "give --data-dir, or leave --mac-budget out"),
        ("`epochs` must be 1", "--epochs must be 1"),
        ("write `Recipe.of(epochs=3)`", "write `Recipe.of(epochs=3)`"),
        ("nothing in backticks", "nothing in backticks"),
    ],
)
def test_arguments_become_flags(message, shown):
    assert with_flags(message) == shown


def test_what_can_be_gone_on_with_is_told_in_either_language():
    error = UserError("`seed` is another", resume=[Path("runs/a b")])
    assert str(error) == "`seed` is another. Go on with dgconv.train.resume('runs/a b')"
    assert told(error) == "--seed is another. Go on with: dgconv train --resume 'runs/a b'"


def test_warnings_of_the_library_are_shown_with_flags(capsys, monkeypatch):
    """Of a budget that no gate can keep, while its training is planned."""
    logger = logging.getLogger("dgconv")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own
    monkeypatch.setattr(logger, "handlers", [])
    main(["train", "--model", "resnet20_cgnet", "--mac-budget", "0.01", "--dry-run", "--json"])
    assert "--mac-budget 0.01" in capsys.readouterr().err
