"""A few inputs for every reader, and everything that was ever a finding. ``python -m tests.fuzz`` tries many more."""

from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
import torch

from tests.fuzz import driver
from tests.fuzz.outcome import GOOD
from tests.fuzz.worker import attempt, rng_of

INPUTS = 60


@pytest.mark.slow
@pytest.mark.parametrize("name", driver.targets())
def test_a_few_inputs_do_no_harm(name: str) -> None:
    target, seen = import_module(f"tests.fuzz.targets.{name}"), Counter[str]()
    with torch.no_grad():
        for number in range(INPUTS):
            given = target.make(rng_of(0, number))
            assert target.store(target.make(rng_of(0, number))) == target.store(given), "not the same input again"
            outcome, message = attempt(target, target.restore(target.store(given)), driver.MOST_MEMORY)
            assert outcome in GOOD, f"input {number}: {message}"
            seen[outcome] += 1
    assert seen["refused"] >= INPUTS // 10, "hardly anything is wrong with these inputs"
    assert seen["accepted"] + seen["equal"] >= INPUTS // 10, "too much is wrong with them: little but headers is read"


@pytest.mark.parametrize(
    "file", [file for name in driver.targets() for file in driver.corpus(name)], ids=lambda f: f.name
)
def test_what_did_harm_once_does_none_now(file: Path) -> None:
    target = import_module(f"tests.fuzz.targets.{file.parent.name}")
    with torch.no_grad():
        outcome, message = attempt(target, target.restore(file.read_bytes()), driver.MOST_MEMORY)
    assert outcome in ("refused", "equal", *(["accepted"] if file.name.startswith("accepted") else [])), message
