"""The MACs of every row of the paper, counted once for all test processes, for it takes half a minute."""

import pickle

import pytest
from filelock import FileLock

from dgconv.analysis.paper import CountedFigure, compare_with_paper


@pytest.fixture(scope="session")
def counted_paper(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> list[CountedFigure]:
    base = tmp_path_factory.getbasetemp()
    file = (base if worker_id == "master" else base.parent) / "counted_paper.pickle"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_bytes(pickle.dumps(compare_with_paper()))
    return pickle.loads(file.read_bytes())
