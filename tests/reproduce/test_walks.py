"""What counts as a file and as a return of a walk through the code."""

import json
from pathlib import Path

import pytest
import torch

from dgconv import create_model, deploy
from dgconv.cli import main
from reproduce.__main__ import main as reproduce
from reproduce.walks import following


def test_files_are_those_of_the_packages_and_each_function_is_read_once():
    network, images = deploy.prepare(create_model("resnet20_dgc").eval()), torch.rand(1, 3, 16, 16)
    with following(("deploy",), Path()) as first:
        network(images)
    assert first.files[0] == "deploy/run/prepared.py"
    assert all(file.startswith("deploy/") for file in first.files)
    assert len(set(first.files)) == len(first.files)
    assert not any(line.startswith(f"{line.partition(' -> ')[2].partition(':')[0]} ->") for line in first.returns)
    with following(("nothing",), Path()) as none:
        network(images)
    assert none.files == none.returns == []


@pytest.mark.slow
def test_a_page_reads_each_file_of_the_run_once(head_folder, tmp_path):
    with following(("cli", "runs"), head_folder) as walk:
        main(["report", str(head_folder), "--only", "training", "--out", str(tmp_path / "page.html")])
    assert {"config.json", "metrics.jsonl"} <= walk.read.keys()
    assert set(walk.read.values()) == {1}


@pytest.mark.slow
def test_a_route_is_taken(capsys):
    reproduce(["walks", "image", "--json"])
    (walk,) = json.loads(capsys.readouterr().out).values()
    assert 5 < len(walk["files"]) < 40


def test_an_unknown_route_is_refused(capsys):
    with pytest.raises(SystemExit) as exit:
        reproduce(["walks", "nowhere"])
    assert exit.value.code == 2
    assert "there are image, page, compare" in capsys.readouterr().err
