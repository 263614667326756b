"""The driver finds what it is there to find."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz import driver
from tests.fuzz.targets import _trouble
from tests.fuzz.worker import rng_of

TROUBLE = {0: "crash", 1: "wrong", 2: "raw", 3: "hang", 4: "memory", 5: "memory"}


@pytest.fixture
def _little_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang is over in seconds, and no test needs a gigabyte."""
    monkeypatch.setattr(driver, "MOST_SECONDS", 2.0)  # slept or computed: a busy machine changes nothing
    monkeypatch.setattr(driver, "MOST_MEMORY", 200 << 20)


@pytest.mark.slow
@pytest.mark.usefixtures("_little_is_much")
def test_all_kinds_of_trouble_are_found_and_kept(tmp_path: Path) -> None:
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
@pytest.mark.usefixtures("_little_is_much")
def test_stored_inputs_are_tried_again(tmp_path: Path) -> None:
    for kind in range(8):
        (tmp_path / f"{kind}").write_text(str(kind))
    findings = driver.replay("_trouble", sorted(tmp_path.iterdir()))
    assert {finding.name: finding.kind for finding in findings} == {str(kind): name for kind, name in TROUBLE.items()}


@pytest.mark.slow
def test_a_run_ends_when_its_time_is_over() -> None:
    result = driver.fuzz("_trouble", 10**9, seconds=3, seed=1, workers=1)
    assert result.inputs < 10**9


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not say what a process does")
def test_a_process_that_is_stopped_does_not_hang() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        clock = driver._Clock(process.pid)
        _until(process.pid, "S")
        assert [clock.seconds(at=1) for _ in range(3)][1:] == pytest.approx([0.1, 0.2], abs=0.05)
        process.send_signal(signal.SIGSTOP)
        _until(process.pid, "T")
        before = clock.seconds(at=1)
        assert clock.seconds(at=1) == before
        assert clock.seconds(at=2) == 0
        process.kill()


def _until(process: int, state: str) -> None:
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != state:
        time.sleep(0.01)
