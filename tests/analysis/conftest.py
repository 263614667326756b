"""The trained networks as run folders to look into."""

import pytest

from dgconv.analysis.run_folder import RunFolder


@pytest.fixture(scope="session")
def head_run(head_folder):
    return RunFolder(head_folder, examples=64)


@pytest.fixture(scope="session")
def global_run(global_folder):
    return RunFolder(global_folder, examples=64)


@pytest.fixture(params=["head", "global"])
def run(request):
    return request.getfixturevalue(f"{request.param}_run")
