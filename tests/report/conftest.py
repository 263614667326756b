"""Reports of really trained networks."""

import json
import shutil

import pytest

from dgconv.analysis.run_folder import RunFolder
from dgconv.report import gather, write_page

FIGURES = ("training", "layer_rates", "time_split", "error_over_macs", "ablation")


@pytest.fixture(scope="session")
def report_runs(head_folder, global_folder):
    return [RunFolder(folder, examples=64) for folder in (head_folder, global_folder)]


@pytest.fixture(scope="session")
def contents(report_runs):
    return gather(report_runs, figures=FIGURES)


@pytest.fixture(scope="session")
def report_file(contents, tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_page(contents, file)
    return file


@pytest.fixture(scope="session")
def bare_folder(global_folder, tmp_path_factory):
    """A run folder as it is often kept: without its weights."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("config.json", "metrics.jsonl"):
        shutil.copy(global_folder / name, folder)
    return folder


@pytest.fixture
def changed_folder(bare_folder, tmp_path):
    """A copy of it with another config: what is given goes into its recipe, or beside it."""

    def change(recipe: dict, name: str = "changed", **beside) -> RunFolder:
        folder = tmp_path / name
        shutil.copytree(bare_folder, folder)
        config = json.loads((folder / "config.json").read_text())
        config["recipe"] |= recipe
        (folder / "config.json").write_text(json.dumps(config | beside))
        return RunFolder(folder)

    return change
