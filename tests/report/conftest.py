"""Reports of really trained networks."""

import shutil

import pytest

from dgconv.analysis.trained_run import TrainedRun
from dgconv.report import gather, write_page
from dgconv.runs import RunFolder
from dgconv.train import Recipe

FIGURES = ("training", "layer_rates", "time_split", "error_over_macs", "ablation")


@pytest.fixture(scope="session")
def report_runs(head_folder, global_folder):
    return [TrainedRun(folder, examples=64) for folder in (head_folder, global_folder)]


@pytest.fixture(scope="session")
def contents(report_runs):
    return gather(report_runs, figures=FIGURES)


@pytest.fixture(scope="session")
def report_file(contents, tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_page(contents, file)
    return file


@pytest.fixture
def changed_folder(bare_folder, tmp_path):
    """A copy of it with another recipe, if one is given, and whatever is to stand beside it."""

    def change(recipe: Recipe | None = None, name: str = "changed", **beside) -> TrainedRun:
        folder = tmp_path / name
        shutil.copytree(bare_folder, folder)
        run = RunFolder(folder)
        given = {"recipe": recipe.to_dict()} if recipe else {}
        run.rewrite_config(run.config | given | beside)
        return TrainedRun(folder)

    return change
