"""'dgconv frontier': a study is planned, trained, deployed, timed and drawn; what is there is used again."""

import json

import pytest

from dgconv.cli import main
from dgconv.compare import frontier as frontier_module
from dgconv.compare.frontier import Frontier, PointResult, Seed, figure_of
from dgconv.compare.study import Study, plan_study
from dgconv.errors import UserError

STUDY = """
title = "A small study"
[shared]
data = "digits"
image_size = 16
epochs = 1
batch_size = 256
width = 8
[teacher]
model = "resnet20"
[families.dgc]
saliency_start = "ones"
[points]
dense = { family = "dense", model = "resnet20" }
dgc = { family = "dgc", model = "resnet20_dgc", pruning_rate = 0.5, freeze_choice = 0.5 }
alone = { family = "dense", model = "resnet20", distillation_weight = 0.0 }
"""


def write(folder, text=STUDY):
    file = folder / "study.toml"
    file.write_text(text)
    return file


def result(name, family, error, ms):
    return PointResult(
        name, family, {}, [Seed(0, error, {"int8": error}, 1)], {"64": {"int8": ms}}, {"int8": "trained"}
    )


def test_settings_of_family_point_and_teacher(tmp_path):
    study = Study.read(write(tmp_path))
    runs = plan_study(study, [0, 1], None, tmp_path / "runs")
    assert [(run.point.name, run.seed) for run in runs][:4] == [("dense", 0), ("dgc", 0), ("alone", 0), ("dense", 1)]
    by_name = {run.point.name: run.recipe for run in runs}
    assert by_name["dgc"].get("saliency_start") == "ones"
    assert by_name["dense"].training.teacher == str(tmp_path / "runs" / "teacher")
    assert by_name["alone"].training.teacher is None, "a weight of nothing needs no teacher"
    assert study.teacher_recipe(None).training.teacher is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[points]", "plans no points"),
        ("[points]\na = 3", "family and settings"),
        ("[point]\na = { family = 'x' }", "has a table 'point'"),
        ("= 3", "no TOML"),
    ],
)
def test_refuses_what_is_no_study(tmp_path, text, told):
    with pytest.raises(UserError, match=told):
        Study.read(write(tmp_path, text))


def test_points_that_nothing_beats():
    points = [
        result("a", "dense", 10, 2.0),
        result("b", "dense", 9, 1.0),
        result("c", "dgc", 8, 3.0),
        result("d", "dgc", 8.5, 3.5),
    ]
    found = Frontier("t", {"hardware": "cpu"}, [], points)
    assert [point.name for point in found.best("int8", "64")] == ["b", "c"]
    assert Frontier.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert len(figure_of(found, "64").axes) == 2


def test_a_dry_run_trains_nothing(tmp_path, capsys):
    main(["frontier", str(write(tmp_path)), "--dry-run", "--json", "--out", str(tmp_path / "runs")])
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["to train"] * 3
    assert not (tmp_path / "runs").exists()


def test_unknown_points_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit:
        main(["frontier", str(write(tmp_path)), "--points", "dnse"])
    assert exit.value.code == 2
    assert "dense" in capsys.readouterr().err


@pytest.mark.slow
def test_trains_deploys_times_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(frontier_module, "time_side_by_side", lambda calls, repeats: {name: [0.001] for name in calls})
    command = ["frontier", str(write(tmp_path)), "--image-sizes", "16", "--out", str(tmp_path / "runs"), "--json"]
    main([*command, "--points", "dense", "dgc"])
    first = json.loads(capsys.readouterr().out)
    assert [point["name"] for point in first["points"]] == ["dense", "dgc"]
    for point in first["points"]:
        (seed,) = point["seeds"]
        assert abs(seed["deployed"]["float32"] - seed["error"]) < 0.5
        assert point["ms"]["16"] == {"float32": 1.0, "int8": 1.0}
        assert point["timed"] == {"float32": "trained", "int8": "trained"}
    assert (tmp_path / "runs" / "frontier.png").stat().st_size > 10_000
    main([*command, "--only-measure"])
    again = json.loads(capsys.readouterr().out)
    assert [point["name"] for point in again["points"]] == ["dense", "dgc"], "what is not trained is left out"
    assert again["points"][0]["seeds"] == first["points"][0]["seeds"]
