"""Two small networks, really trained once a session, for everything that looks at a run folder."""

import shutil

import pytest
import torch

from dgconv.train import Recipe, train
from dgconv.train.run import Run

TINY = {"stages": (2, 1, 1), "growth": (4, 8, 16), "image_size": 16, "epochs": 3, "seed": 1}


@pytest.fixture(scope="session")
def head_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "dgc"
    train(Recipe.of(**TINY), folder)
    return folder


@pytest.fixture(scope="session")
def global_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "dgcg"
    train(Recipe.of(**TINY, model="condensenet20_dgcg"), folder)
    return folder


@pytest.fixture(scope="session")
def bare_folder(global_folder, tmp_path_factory):
    """A run folder as it is often kept: without its weights."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(global_folder / name, folder)
    return folder


def stop_after(steps, recipe, folder, data):
    """Train that many steps, save, and forget the run."""
    folder.mkdir()
    run = Run(recipe, folder, data, torch.device("cpu"))
    advance = run.advance()
    done = 0
    while done < steps:
        done += next(advance) is None
    run.save()
    run.writer.wait()
