"""The benchmark of the native convolutions runs and writes what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dgconv.ops import native

BENCHMARK = Path(__file__).resolve().parent.parent / "benchmarks" / "cpu_convs.py"


@pytest.mark.slow
@pytest.mark.skipif(not native.available(), reason="the native kernels were not built")
def test_runs(tmp_path):
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    options = ["--threads", "1", "--repeats", "1", "--json", str(figures), "--picture", str(picture)]
    done = subprocess.run([sys.executable, str(BENCHMARK), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "xi = 3/4: at least 3.5x faster than dense" in done.stdout
    (row,) = json.loads(figures.read_text())["rows"]
    assert row["dense operations"] == 13 * 231_211_008 + 3 * 115_605_504
    assert all(row[f"DGC {rate}"] > 0 for rate in ("0", "1/3", "1/2", "3/4", "7/8"))
    assert picture.read_bytes().startswith(b"\x89PNG")
