"""What is missing, and training it in several sittings, on the digits in small."""

import json
import shutil
from pathlib import Path

import pytest

from dgconv.cli.train import parse_train
from dgconv.train import recipe_files
from dgconv.train.recipe_files import load_recipe
from reproduce import wanted
from reproduce.__main__ import main
from reproduce.missing import plan, with_data
from reproduce.page import results_page
from reproduce.study import find_base, study_of
from reproduce.wanted import CHANGES, Wanted, WantedChange, WantedTable, all_wanted, missing_runs

DGC, DGC33 = "cifar10_condensenet50_dgc", "cifar10_condensenet50_dgc_rate33"
TINY = """
[model]
stages = [1, 1]
growth = [4, 8]
[data]
image_size = 8
[training]
epochs = 2
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Two seeds of one recipe are wanted, and one seed with another lasso."""
    recipes = tmp_path / "recipes"
    shutil.copytree(recipe_files.RECIPES, recipes)
    (recipes / "tiny.toml").write_text(TINY)
    monkeypatch.setattr(recipe_files, "RECIPES", recipes)
    monkeypatch.setattr(wanted, "TABLES", (WantedTable("Tiny", "", (Wanted("tiny", (0, 1)),)),))
    monkeypatch.setattr(wanted, "CHANGES", (WantedChange("tiny", "lasso", "paper"),))


@pytest.fixture
def reproduce(checkout, tmp_path, capsys):
    def run(*arguments, code=0):
        command = ["train", "--root", str(checkout.root), "--out", str(tmp_path / "runs"), *arguments]
        if code:
            with pytest.raises(SystemExit) as exit:
                main(command)
            assert exit.value.code == code
            return capsys.readouterr().err
        main(command)
        return capsys.readouterr().out

    return run


def test_everything_is_missing_without_records_and_is_trained_in_one_precision(checkout):
    runs = missing_runs(checkout.groups)
    assert len(runs) == sum(len(row.seeds) for row in all_wanted()) + len(CHANGES)
    assert {run.training.precision for run in runs if run.name not in (DGC, DGC33)} == {"bfloat16"}
    assert {run.name for run in runs if run.training.precision == "float32"} == {DGC, DGC33}, "as a change of theirs"
    assert len({(run.name, run.training.seed, str(run.settings)) for run in runs}) == len(runs), "each once"


def test_the_study_wants_one_change_at_a_time_at_both_rates():
    changes = {
        name: {change.setting: change.value for change in CHANGES if change.recipe == name} for name in (DGC, DGC33)
    }
    assert changes[DGC33] == changes[DGC] | {"keep_rule": "round"}
    assert changes[DGC].keys() >= {"lasso", "per_head_init", "halve_squeeze", "precision", "generator_weight_decay"}
    for change in CHANGES:
        base = load_recipe(change.recipe)
        if change.setting != "precision":
            assert list(base.differences(change.applied(base))) == [change.setting]


def test_what_is_on_record_is_not_missing(checkout, add):
    before = missing_runs(checkout.groups)
    for seed in (0, 5):
        add(6.0, name=DGC, seed=seed, precision="bfloat16")
    add(6.0, name=DGC, lasso="paper", precision="bfloat16", compile=True)
    add(6.0, name=DGC, ramp_end=0.5, precision="bfloat16", done=3)
    add(6.0, name=DGC33, lasso="paper", precision="float32")  # not that of the others
    after = missing_runs(type(checkout)(checkout.root).groups)
    gone = [run for run in before if run not in after]
    assert [(run.name, run.training.seed, run.training.lasso) for run in gone] == [
        (DGC, 0, "authors"),
        (DGC, 2, "authors"),  # another seed stands for it
        (DGC, 0, "paper"),
    ]
    assert len(after) == len(before) - len(gone)


def test_changes_are_studied_in_the_precision_of_what_they_change(checkout, add):
    add(6.0, name=DGC)
    float32 = [run for run in missing_runs(checkout.groups) if run.name == DGC and run.training.lasso == "paper"]
    assert [run.training.precision for run in float32] == ["float32"]


def test_a_run_that_is_not_finished_does_not_decide_the_precision(checkout, add):
    """Nor would it be asked for twice, as it is and as the change to its own precision."""
    add(6.0, name=DGC, precision="float32", done=3)
    runs = missing_runs(checkout.groups)
    assert len({(run.name, run.training.seed, str(run.settings)) for run in runs}) == len(runs)
    assert {run.training.precision for run in runs if run.name == DGC and run.training.lasso == "paper"} == {"bfloat16"}


def test_the_page_says_what_is_missing_and_how_to_train_it(checkout, add):
    add(6.0, name=DGC, precision="bfloat16")
    add(6.5, name=DGC, lasso="paper", precision="bfloat16")
    groups = checkout.groups
    study = study_of(find_base(DGC, groups), groups)
    assert [factor.setting for factor in study.factors] == ["lasso"]
    assert "lasso" not in {change.setting for change in study.missing}
    assert ["ramp_end: 0.75 → 0.5", "missing", "", "", ""] in study.lines
    assert [line[0].partition(":")[0] for line in study.lines[1:]] == sorted(
        change.setting for change in CHANGES if change.recipe == DGC
    )
    assert {"setting": "ramp_end", "before": "0.75", "after": "0.5"} in study.to_dict()["missing"]
    page = results_page(groups, {})
    assert page.count("| ramp_end: 0.75 → 0.5 | missing |") == 1
    missing = page.partition("## Missing")[2].splitlines()
    assert f"dgconv train {DGC} --ramp-end 0.5 --precision bfloat16 --seeds 0 --data-dir DIR" in missing
    assert f"dgconv train {DGC} --precision bfloat16 --seeds 1 2 --data-dir DIR" in missing
    assert f"dgconv train {DGC} --precision float32 --seeds 0 --data-dir DIR" in missing


@pytest.mark.slow
def test_every_command_for_what_is_missing_is_right(checkout, capsys):
    """Each is parsed, and asks for the very run; nothing is trained."""
    wanted_runs = missing_runs(checkout.groups)
    lines = [line for line in results_page([], {}).splitlines() if line.startswith("dgconv train ")]
    asked = [run for line in lines for run in parse_train(line.split()[2:]).runs]
    assert [(run.name, run.training.seed, run.settings) for run in asked] == [
        (run.name, run.training.seed, run.settings) for run in wanted_runs
    ]


@pytest.mark.slow
def test_trained_in_two_sittings_and_added(checkout, tiny, reproduce, tmp_path, capsys):
    names = ["tiny-seed0", "tiny-seed1", "tiny-lasso=paper-seed0"]
    assert [run.folder.name for run in plan(checkout.groups, (), tmp_path)] == names
    assert "3 missing runs" in reproduce("--dry-run")
    assert not (tmp_path / "runs").exists()

    reproduce("--data-dir", str(tmp_path))
    done = json.loads(reproduce("--json", "--dry-run"))
    assert [(run["run"].rpartition("/")[2], run["epochs_done"]) for run in done] == [(name, 2) for name in names]
    assert done[2]["recipe"]["training"]["lasso"] == "paper"
    out = reproduce()
    assert out.count("done, to be added") == 3
    command = out.partition("To add what is done: python -m reproduce ")[2].split()
    capsys.readouterr()
    main([*command, "--root", str(checkout.root)])
    capsys.readouterr()
    assert "0 missing runs" in reproduce()
    assert missing_runs(type(checkout)(checkout.root).groups) == []


@pytest.mark.slow
def test_stopped_and_gone_on_with(checkout, tiny, reproduce, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit:
        reproduce("--data-dir", str(tmp_path), "--stop-after", "1e-9")
    assert exit.value.code == 0
    assert "The same command goes on with what is in" in capsys.readouterr().err
    runs = plan(checkout.groups, (), tmp_path / "runs")
    assert [(run.is_begun, run.state) for run in runs] == [
        (True, "at epoch 0 of 2"), (False, "not begun"), (False, "not begun"),
    ]  # fmt: skip
    reproduce("--data-dir", str(tmp_path))
    assert all(run.is_done for run in plan(checkout.groups, (), tmp_path / "runs"))


def test_what_was_begun_comes_first(checkout, tiny, tmp_path):
    last = plan(checkout.groups, (), tmp_path)[-1].folder
    last.mkdir()
    (last / "checkpoint.safetensors").touch()
    assert plan(checkout.groups, (), tmp_path)[0].folder == last


def test_wrong_use(checkout, reproduce, tmp_path):
    assert "name the folder that holds cifar10/, cifar100/ and imagenet/ with --data-dir" in reproduce(code=2)
    (tmp_path / "cifar10").mkdir()
    told = reproduce("--data-dir", str(tmp_path), code=2)
    assert f"{tmp_path} must hold a folder for each data set, and has none called cifar100 or imagenet" in told
    assert "no missing run matches nothing*" in reproduce("nothing*", code=2)
    assert "--stop-after takes a number of minutes above 0" in reproduce("--stop-after", "0", code=2)
    assert "is no checkout of dgconv" in reproduce("--root", str(tmp_path), code=2)


def test_the_data_folder_may_be_in_ones_home(checkout, monkeypatch, tmp_path):
    """No shell puts it in the place of the ~ in --data-dir=~/data."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folders = [tmp_path / "data" / name for name in ("cifar10", "cifar100", "imagenet")]
    for folder in folders:
        folder.mkdir(parents=True)
    runs = with_data(plan(checkout.groups, (), tmp_path), Path("~/data"))
    assert {run.recipe.data.dir for run in runs} == {*map(str, folders)}


def test_a_folder_with_a_run_of_another_recipe_is_not_taken_for_done(checkout, tiny, write_run, reproduce):
    """Its record would be another one, and the run be missing for ever."""
    write_run("runs/tiny-seed0", 5.0, name="tiny", precision="bfloat16", momentum=0.5)
    error = reproduce("--dry-run", code=2)
    assert "runs/tiny-seed0 holds a run of another recipe: momentum is 0.5, not 0.9" in error
    assert "--out" in error
