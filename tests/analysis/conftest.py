"""The trained networks as run folders to look into."""

import pytest

from dgconv.analysis.trained_run import TrainedRun


@pytest.fixture(scope="session")
def head_run(head_folder):
    return TrainedRun(head_folder, examples=64)


@pytest.fixture(scope="session")
def global_run(global_folder):
    return TrainedRun(global_folder, examples=64)


@pytest.fixture(params=["head", "global"])
def run(request):
    return request.getfixturevalue(f"{request.param}_run")
