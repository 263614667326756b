"""The trained networks as run folders to look into."""

import pytest

from dgconv.analysis.trained_run import TrainedRun
from dgconv.train import train


@pytest.fixture(scope="session")
def head_run(head_folder):
    return TrainedRun(head_folder, examples=64)


@pytest.fixture(scope="session")
def global_run(global_folder):
    return TrainedRun(global_folder, examples=64)


@pytest.fixture(scope="session")
def dense_run(head_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense") / "run"
    train(head_run.recipe.changed(name="", model="condensenet20", epochs=1, heads=None, pruning_rate=None), folder)
    return TrainedRun(folder)


@pytest.fixture(params=["head", "global"])
def run(request):
    return request.getfixturevalue(f"{request.param}_run")
