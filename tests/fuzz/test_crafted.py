"""Networks made by hand to do harm: in a process of their own, which may not take much memory or time."""

from pathlib import Path

import pytest

from tests.fuzz import driver, graphs
from tests.fuzz.crafted import CASES


@pytest.mark.slow
def test_crafted_networks_do_no_harm(tmp_path: Path) -> None:
    for name, make in CASES.items():
        (tmp_path / name).write_bytes(graphs.store(make()))
    assert len(CASES) == 43
    assert driver.replay("prepared", sorted(tmp_path.iterdir())) == []
