"""Two small networks, really trained, to look into."""

import pytest

from dgconv.analysis.run_folder import RunFolder
from dgconv.train import Recipe, train

TINY = {"stages": (2, 1, 1), "growth": (4, 8, 16), "image_size": 16, "epochs": 3, "seed": 1}


@pytest.fixture(scope="session")
def head_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "dgc"
    train(Recipe(**TINY), folder)
    return folder


@pytest.fixture(scope="session")
def global_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "dgcg"
    train(Recipe(**TINY, model="condensenet20_dgcg"), folder)
    return folder


@pytest.fixture(scope="session")
def head_run(head_folder):
    return RunFolder(head_folder, examples=64)


@pytest.fixture(scope="session")
def global_run(global_folder):
    return RunFolder(global_folder, examples=64)


@pytest.fixture(params=["head", "global"])
def run(request):
    return request.getfixturevalue(f"{request.param}_run")
