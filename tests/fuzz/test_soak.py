"""Many threads with images of many sizes stay within the budget of memory, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_memory_stays_within_the_budget() -> None:
    """Without one, the arenas of so many threads and sizes would take several times as much."""
    options = ["--minutes", "0.03", "--threads", "8", "--sizes", "12", "--largest", "256", "--budget", "40M"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.soak", *options], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["wrong"] == 0
    assert 0 < found["peak"] <= found["budget"] == 40 << 20
    assert found["taken"] <= found["budget"]
    assert found["calls"] >= found["threads"]
