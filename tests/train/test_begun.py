"""Trainings of which some were begun before: the same call is made again until all is done."""

import errno

import pytest
import torch

from dgconv.cli import resume_command, told
from dgconv.errors import UserError
from dgconv.runs import RunFolder
from dgconv.runs.checkpoint import load_checkpoint
from dgconv.runs.leftovers import content_of
from dgconv.runs.names import CHECKPOINT
from dgconv.train import Recipe, Stopped, TimeLimit, train, train_all
from dgconv.train.engine import _disk_trouble
from dgconv.train.side_by_side import Silent

SMALL = {"stages": (1, 1), "growth": (4, 8), "image_size": 8, "batch_size": 64, "epochs": 1}
RECIPES = [Recipe.of(**SMALL, seed=seed) for seed in range(3)]


def same_weights(first, second):
    pairs = zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.slow
def test_begins_and_goes_on_until_all_is_done(tmp_path):
    class Starts(Silent):
        def __init__(self):
            self.told = {}

        def start(self, index, name, steps, done):
            self.told[index] = done

    class Soon(TimeLimit):
        """Over once the second network is under way."""

        is_over = property(lambda self: 1 in first.told)

    first, second = Starts(), Starts()
    jobs = [(recipe, tmp_path / f"run{recipe.training.seed}") for recipe in RECIPES]
    with pytest.raises(Stopped, match=r"run1, .*run2$") as stopped:
        train_all(jobs, resuming="begun", watcher=first, time_limit=Soon(1.0))
    assert stopped.value.folders == [folder for _, folder in jobs[1:]]
    assert stopped.value.telling("Again.") == "stopped after 1 minute and saved. Again."
    assert [load_checkpoint(folder).position.epoch for _, folder in jobs[:2]] == [1, 0]
    assert not jobs[2][1].exists(), "nothing is left of one that was not begun"
    steps_done = load_checkpoint(jobs[1][1]).position.step
    assert steps_done > 0

    results = train_all(jobs, resuming="begun", watcher=second)
    assert second.told[1] == steps_done
    assert second.told[2] == 0
    for recipe, result in zip(RECIPES, results, strict=True):
        assert same_weights(result, train(recipe, tmp_path / f"alone{recipe.training.seed}"))


def test_folders_with_spaces_are_named_so_that_a_shell_takes_them(tmp_path):
    folder = tmp_path / "my runs"
    with pytest.raises(Stopped) as stopped:
        train_all([(RECIPES[0], folder)], time_limit=TimeLimit(1e-9))
    assert resume_command(stopped.value.folders) == f"dgconv train --resume '{folder}'"
    error = _disk_trouble(OSError(errno.ENOSPC, "No space left on device"), [folder])
    assert error.resume == [folder]
    assert told(error).endswith(f"dgconv train --resume '{folder}'")


def test_leftovers_go_and_what_others_put_there_stays(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n')
    (tmp_path / ".model.safetensors.x.unfinished").touch()
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events").touch()
    train_all([(RECIPES[0], tmp_path)], resuming="begun")
    assert load_checkpoint(tmp_path).position.epoch == 1
    assert not (tmp_path / ".model.safetensors.x.unfinished").exists()

    (tmp_path / CHECKPOINT).unlink()
    (tmp_path / "notes.txt").write_text("mine")
    before = set(content_of(tmp_path))
    with pytest.raises(UserError, match="exists and is not empty"):
        train_all([(RECIPES[0], tmp_path)], resuming="begun")
    assert set(content_of(tmp_path)) == before


@pytest.mark.parametrize("others", [".git", "tensorboard"])
def test_hidden_folders_and_what_links_lead_to_stay(tmp_path, others):
    place = tmp_path / "place"
    (place / ".git").mkdir(parents=True)
    (place / ".git" / "mine").touch()
    run = tmp_path / "run"
    run.mkdir()
    (run / others).symlink_to(place / ".git")
    if others == ".git":
        with pytest.raises(UserError, match="exists and is not empty"):
            train_all([(RECIPES[0], run)], resuming="begun")
    else:
        train_all([(RECIPES[0], run)], resuming="begun")
    assert (place / ".git" / "mine").exists()


def test_a_network_without_its_checkpoint_is_not_trained_over(tmp_path):
    train(RECIPES[0], tmp_path)
    (tmp_path / CHECKPOINT).unlink()
    weights = RunFolder(tmp_path).weights_file.read_bytes()
    with pytest.raises(UserError, match="holds a trained network, but no checkpoint"):
        train_all([(RECIPES[0].changed(seed=5), tmp_path)], resuming="begun")
    assert RunFolder(tmp_path).weights_file.read_bytes() == weights


def test_another_recipe_is_refused(tmp_path):
    train(RECIPES[0], tmp_path)
    with pytest.raises(UserError, match="from another recipe: seed was 0, is 1"):
        train_all([(RECIPES[1], tmp_path)], resuming="begun")


def test_new_folders_go_again_where_another_one_is_refused(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    new = tmp_path / "new"
    jobs = [(RECIPES[0], new / "a"), (RECIPES[1], new / "b"), (RECIPES[2], tmp_path / "used")]
    for resuming in (False, "begun"):
        with pytest.raises(UserError, match="used exists and is not empty"):
            train_all(jobs, resuming=resuming)
        assert not new.exists()
