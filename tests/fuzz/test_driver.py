"""The driver finds what it is there to find."""

from pathlib import Path

import pytest

from tests.fuzz import driver
from tests.fuzz.targets import _trouble
from tests.fuzz.worker import rng_of

TROUBLE = {0: "crash", 1: "wrong", 2: "raw", 3: "hang", 4: "memory", 5: "memory"}


@pytest.mark.slow
def test_all_kinds_of_trouble_are_found_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_SECONDS", 2.0)
    inputs = 40
    given = {str(number): _trouble.make(rng_of(5, number)) for number in range(inputs)}
    expected = {name: TROUBLE[kind] for name, kind in given.items() if kind in TROUBLE}
    result = driver.fuzz("_trouble", inputs, seed=5, keep=tmp_path)
    assert {finding.name: finding.kind for finding in result.findings} == expected
    assert len(expected) >= 3
    assert result.inputs == inputs
    assert result.counts["refused"] == sum(kind == 6 for kind in given.values())
    for name, kind in expected.items():
        assert (tmp_path / f"_trouble-{kind}-5-{name}").read_text() == str(given[name])


@pytest.mark.slow
def test_stored_inputs_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_SECONDS", 2.0)
    for kind in range(8):
        (tmp_path / f"{kind}").write_text(str(kind))
    findings = driver.replay("_trouble", sorted(tmp_path.iterdir()))
    assert {finding.name: finding.kind for finding in findings} == {str(kind): name for kind, name in TROUBLE.items()}


@pytest.mark.slow
def test_a_run_ends_in_time() -> None:
    result = driver.fuzz("_trouble", 10**9, seconds=8, seed=1, workers=1)
    assert 8 <= result.seconds < 12
    assert result.inputs < 10**9
