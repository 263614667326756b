"""A run that was stopped, killed or left without disk goes on as if nothing had happened."""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from processes import run_dgconv, start_dgconv
from safetensors.torch import save_file
from trained_runs import stop_after

from dgconv.analysis.trained_run import TrainedRun
from dgconv.cli import main
from dgconv.data import load_data
from dgconv.errors import UserError
from dgconv.models import load_model
from dgconv.models.mobilenetv2 import STAGES
from dgconv.runs import Checkpoint, Position, RunFolder
from dgconv.runs.checkpoint import load_checkpoint, save_checkpoint
from dgconv.runs.names import CHECKPOINT
from dgconv.train import Recipe, resume, train
from dgconv.train.classes import load_data_of_run, refuse_other_classes
from dgconv.train.run import Run

SMALL = {"stages": (1, 1), "growth": (4, 8), "image_size": 8, "batch_size": 256, "epochs": 4}
CPU = torch.device("cpu")
STEPS = 5  # an epoch
LONG = 12  # epochs in which there is time to do something to a training


@pytest.fixture(scope="module")
def data():
    return load_data("digits", image_size=8)


def weights(folder):
    return RunFolder(folder).weights()


def assert_same_end(folder, expected):
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(folder).items())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["condensenet20_dgc", "condensenet20_dgcg"])
def test_resumed_at_any_step_it_ends_with_the_same_weights(tmp_path, data, model):
    recipe = Recipe.of(model=model, **SMALL, threshold_batches=2, threshold_every=2)
    train(recipe, tmp_path / "whole")
    expected = weights(tmp_path / "whole")
    lines = RunFolder(tmp_path / "whole").metrics
    for steps in (0, 1, 3, 5, 7, 9, 10, 14, 19):
        folder = tmp_path / str(steps)
        stop_after(steps, recipe, folder, data)
        resume(folder)
        assert_same_end(folder, expected)
        for old, new in zip(lines, RunFolder(folder).metrics, strict=True):
            for key in ("epoch", "learning_rate", "train_loss", "train_error", "test_loss", "test_error", "threshold"):
                assert old[key] == new[key], (steps, key)


@pytest.mark.slow
def test_dropout_goes_on_with_the_same_random_numbers(tmp_path, data, monkeypatch):
    monkeypatch.setattr("dgconv.models.mobilenetv2.STAGES", STAGES[:3])  # a shallow one: the dropout is at its end
    options = {"width": 0.25, "downsample": (3,), "stem_stride": 1, "image_size": 8, "batch_size": 512, "epochs": 2}
    recipe = Recipe.of(model="mobilenetv2_dgc", **options)
    train(recipe, tmp_path / "whole")
    stop_after(1, recipe, tmp_path / "part", data)
    torch.manual_seed(99)  # whatever happened in between
    resume(tmp_path / "part")
    assert_same_end(tmp_path / "part", weights(tmp_path / "whole"))


@pytest.mark.slow
def test_finished_run_resumes_to_its_result(tmp_path):
    recipe = Recipe.of(**SMALL)
    first = train(recipe, tmp_path / "run")
    again = resume(tmp_path / "run")
    assert again.evaluation.error == first.evaluation.error


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 40], ids=["the end of the line", "half a line"])
def test_metrics_cut_off_by_a_loss_of_power_are_repaired(tmp_path, data, lost):
    stop_after(2 * STEPS + 1, Recipe.of(**SMALL), tmp_path / "run", data)
    path = tmp_path / "run" / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-lost])
    resume(tmp_path / "run")
    epochs = [line["epoch"] for line in RunFolder(tmp_path / "run").metrics]
    assert epochs == ([1, 2, 3, 4] if lost == 1 else [1, 3, 4])


def test_best_is_kept_beside_the_last(tmp_path, data):
    train(Recipe.of(**SMALL | {"epochs": 6}), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert run.checkpoint.position.best_error == min(line["test_error"] for line in run.metrics)
    assert (tmp_path / "run" / "best.safetensors").exists()


def options(folder, epochs=4):
    small = ["--stages", 1, 1, "--growth", 4, 8, "--image-size", 8, "--batch-size", 64]
    return ["train", *small, "--epochs", epochs, "--checkpoint-minutes", 0, "--out", folder]


def begin(folder, *more, fresh=False):
    """A training of LONG epochs in a process of its own, after its first step."""
    process = start_dgconv(*options(folder, LONG), *more, fresh=fresh)
    while not (folder / CHECKPOINT).exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    return process


def go_on(folder):
    return run_dgconv("train", "--resume", folder)


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    """The folder of a whole training of LONG epochs."""
    folder = tmp_path_factory.mktemp("never_stopped") / "run"
    assert run_dgconv(*options(folder, LONG))[0] == 0
    return folder


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    """And resumed at once, for a lock dies with its process. DGCONV_KILLS=50 for the long form."""
    assert run_dgconv(*options(tmp_path / "whole"))[0] == 0
    kills, chance = int(os.environ.get("DGCONV_KILLS", 4)), random.Random(0)
    done = round_number = 0
    while done < kills:
        folder = tmp_path / f"run{round_number}"
        round_number += 1
        process = start_dgconv(*options(folder))
        while True:
            deadline = time.monotonic() + 20
            while not (folder / CHECKPOINT).exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.4))
            if process.poll() is not None or done >= kills:
                break
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1
            load_checkpoint(folder)  # it loads, always
            process = start_dgconv("train", "--resume", folder)
            time.sleep(chance.uniform(0, 0.8))  # its start takes about half of that
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert_same_end(folder, weights(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "minutes", "message", "code"),
    [
        (signal.SIGINT, None, "stopped and saved", 130),
        (signal.SIGTERM, None, "stopped and saved", 143),
        (None, "0.01", "stopped after 0.01 minutes and saved", 0),
    ],
)
def test_stopped_it_saves_and_says_how_to_go_on(tmp_path, never_stopped, number, minutes, message, code):
    folder = tmp_path / "run"
    limit = ["--stop-after", minutes] if minutes else []
    process = begin(folder, *limit, fresh=number == signal.SIGINT)
    if number:
        process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert stderr.splitlines()[-1] == f"dgconv: {message}. To go on: dgconv train --resume {folder}"
    assert "Traceback" not in stderr
    assert load_checkpoint(folder).position.epoch < LONG
    assert load_checkpoint(folder).recipe == load_checkpoint(never_stopped).recipe
    assert go_on(folder)[0] == 0
    assert_same_end(folder, weights(never_stopped))


@pytest.mark.slow
def test_a_run_under_way_is_left_alone(tmp_path, never_stopped):
    folder = tmp_path / "run"
    process = begin(folder)
    process.send_signal(signal.SIGSTOP)  # else it might be done before the second one comes
    code, _, told = go_on(folder)
    process.send_signal(signal.SIGCONT)
    assert code == 2
    assert f"{folder} is in use: process {process.pid} on " in told
    assert "Traceback" not in told
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert_same_end(folder, weights(never_stopped))
    assert len(RunFolder(folder).metrics) == LONG


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, data, monkeypatch):
    recipe = Recipe.of(**SMALL)
    stop_after(3, recipe, tmp_path / "run", data)
    old = (tmp_path / "run" / CHECKPOINT).read_bytes()
    run = Run(recipe, tmp_path / "run", data, CPU, load_checkpoint(tmp_path / "run"))
    next(run.advance())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    run.save()
    with pytest.raises(OSError, match="No space left on device"):
        run.writer.wait()
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == old


def test_wrong_checkpoints(tmp_path, data):
    with pytest.raises(UserError, match=r"has no checkpoint.safetensors"):
        resume(tmp_path)
    stop_after(2, Recipe.of(**SMALL), tmp_path / "run", data)
    other = Recipe.of(**SMALL, learning_rate=0.2, seed=1)
    with pytest.raises(UserError, match=r"another recipe: learning_rate was 0\.1, is 0\.2; seed was 0, is 1"):
        Run(other, tmp_path / "run", data, CPU, load_checkpoint(tmp_path / "run"))
    path: Path = tmp_path / "run" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged or not a checkpoint"):
        resume(tmp_path / "run")


def test_a_network_whose_code_has_changed_since_is_refused(tmp_path, data, monkeypatch):
    recipe = Recipe.of(model="mobilenetv2_dgc", width=0.25, downsample=(1, 2, 3), image_size=8)
    stop_after(1, recipe, tmp_path / "run", data)
    monkeypatch.setattr("dgconv.models.mobilenetv2.STAGES", STAGES[:3])
    with pytest.raises(UserError, match=r"checkpoint\.safetensors does not fit the network as it is built now: "):
        resume(tmp_path / "run")


def test_a_run_of_a_version_with_fewer_settings_goes_on(tmp_path):
    recipe = Recipe.of(**SMALL)
    older = recipe.to_dict()
    for name in ("ramp_end", "clip_gradients"):
        del older["training"][name]
    save_checkpoint(tmp_path, Checkpoint(Position(), older))
    older = Recipe.from_dict(load_checkpoint(tmp_path).recipe, "a run")
    assert older.refused_on_resume(recipe.changed(stages=[1, 1])) == []
    assert older.refused_on_resume(recipe.changed(ramp_end=0.5)) == ["ramp_end was 0.75, is 0.5"]
    assert older.refused_on_resume(recipe.changed(heads=2)) == ["heads was None, is 2"]
    assert older.refused_on_resume(recipe.changed(compile=True, data_dir="elsewhere")) == []


def test_where_and_how_the_data_is_read_may_change():
    recipe = Recipe.of(**SMALL)
    free = {"data_dir": "elsewhere", "workers": 3, "skip_corrupt_images": True, "name": "mine", "checkpoint_minutes": 1}
    assert recipe.refused_on_resume(recipe.changed(**free)) == []


@pytest.mark.parametrize("metadata", [None, {"position": "{", "recipe": "{}"}, {"position": "[]", "recipe": "{}"}])
def test_a_file_that_is_no_checkpoint(tmp_path, metadata):
    save_file({"model.weight": torch.zeros(2)}, tmp_path / CHECKPOINT, metadata=metadata)
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged or not a checkpoint of dgconv"):
        load_checkpoint(tmp_path)


def test_a_run_without_a_whole_epoch_is_told_how_to_go_on(tmp_path, capsys):
    (tmp_path / CHECKPOINT).touch()
    with pytest.raises(SystemExit, match="2"):
        main(["eval", str(tmp_path)])
    assert f"Go on with: dgconv train --resume {tmp_path}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize("lose", [Path.unlink, lambda path: os.truncate(path, 100)], ids=["deleted", "damaged"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_run_that_is_done_gets_back_a_file_that_was_lost(tmp_path, name, lose):
    expected = train(Recipe.of(**SMALL | {"epochs": 1}), tmp_path).model.state_dict()
    lose(tmp_path / name)
    with pytest.raises(UserError):
        load_model(tmp_path)
    resume(tmp_path)
    model = load_model(tmp_path)
    assert all(torch.equal(tensor, expected[key]) for key, tensor in model.state_dict().items())


def test_a_run_that_is_done_and_whole_is_left_as_it_is(tmp_path):
    train(Recipe.of(**SMALL | {"epochs": 1}), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.suffix in (".safetensors", ".json")}
    resume(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.fixture
def photos(tmp_path):
    """A data set of image files with these classes; returns its folder."""

    def write(name, *classes):
        for split in ("train", "test"):
            for number, label in enumerate(classes):
                (tmp_path / name / split / label).mkdir(parents=True)
                Image.new("RGB", (8, 8), (60 * number, 9, 9)).save(tmp_path / name / split / label / "1.png")
        return str(tmp_path / name)

    return write


OTHER_CLASSES = {("b", "zebra"): r"number 0 was 'a', and is 'b'", ("a", "b", "c"): "2 of them, now 3"}


@pytest.mark.parametrize("classes", OTHER_CLASSES)
def test_other_classes_than_the_run_was_trained_on_are_refused(tmp_path, photos, capsys, classes):
    """Their numbers mean something else, so the network would be wrong where it is right."""
    recipe = Recipe.of(**SMALL | {"epochs": 1}, data="folder", data_dir=photos("then", "a", "b"), workers=0)
    train(recipe, tmp_path / "run")
    now = photos("now", *classes)
    with pytest.raises(UserError, match=OTHER_CLASSES[classes]):
        _ = TrainedRun(tmp_path / "run", now).data
    for command in ("train", "--resume"), ("eval",):
        with pytest.raises(SystemExit) as ended:
            main([*command, str(tmp_path / "run"), "--data-dir", now])
        assert ended.value.code == 2
        assert f"other classes than the data set has: {OTHER_CLASSES[classes]}" in capsys.readouterr().err


def test_classes_without_names_are_only_counted(tmp_path, data):
    unnamed, named = replace(data, classes=["0", "1"]), replace(data, classes=["a", "b"])
    refuse_other_classes(["a", "b"], unnamed, tmp_path)
    refuse_other_classes(["0", "1"], named, tmp_path)
    refuse_other_classes([], named, tmp_path)  # of a run that did not note them
    with pytest.raises(UserError, match="3 of them, now 2"):
        refuse_other_classes(["0", "1", "2"], named, tmp_path)


def test_an_older_run_without_names_is_held_to_their_number(tmp_path, photos):
    recipe = Recipe.of(**SMALL | {"epochs": 1}, data="folder", data_dir=photos("then", "a", "b"), workers=0)
    train(recipe, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert run.config["classes"] == ["a", "b"]
    run.rewrite_config({key: value for key, value in run.config.items() if key != "classes"})
    run = RunFolder(run.path)
    assert load_data_of_run(run, recipe, photos("named", "b", "c")).classes == ["b", "c"]
    with pytest.raises(UserError, match="2 of them, now 3"):
        load_data_of_run(run, recipe, photos("more", "a", "b", "c"))
