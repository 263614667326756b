"""One run folder: each file is read once, written whole, and what is missing is told with how to go on."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from dgconv import create_model, load_model, save_model
from dgconv.analysis.trained_run import TrainedRun
from dgconv.errors import UserError
from dgconv.models.storage import input_size_of
from dgconv.runs import Checkpoint, Position, RunFolder, checkpoint, config, folder, metrics
from dgconv.runs.checkpoint import save_checkpoint
from dgconv.runs.names import CHECKPOINT, CONFIG, METRICS, WEIGHTS
from dgconv.train import Recipe
from dgconv.version import __version__

LINE = {"epoch": 1, "test_error": 12.5, "seconds": 3.0}
RECIPE = Recipe.of(stages=(1,), growth=(4,), image_size=8, epochs=1)


@pytest.fixture
def path(tmp_path):
    """A run folder with all that a training writes, of a network that was never trained."""
    model = create_model("condensenet20_dgc", stages=(1,), growth=(4,), num_classes=10)
    save_model(model, tmp_path, recipe=RECIPE.to_dict(), input_size=(3, 8, 8))
    (tmp_path / METRICS).write_text(json.dumps(LINE) + "\n")
    save_checkpoint(tmp_path, Checkpoint(Position(epoch=1), RECIPE.to_dict(), {"model.x": torch.ones(2)}))
    return tmp_path


@pytest.fixture
def opened(monkeypatch):
    """How often each file was read, by name."""
    counts = Counter()

    def counted(owner, name):
        original = getattr(owner, name)

        def opens(file, *args, **kwargs):
            counts[Path(file).name] += 1
            return original(file, *args, **kwargs)

        monkeypatch.setattr(owner, name, opens)

    counted(Path, "read_text")
    counted(Path, "read_bytes")
    for module in (config, metrics):
        counted(module, "read_whole")
    for module in (checkpoint, folder):
        counted(module, "read_tensors")
    counted(folder, "read_shapes")
    return counts


def test_nothing_is_read_before_it_is_asked_for(tmp_path, path, opened):
    RunFolder(tmp_path / "nowhere")
    run = RunFolder(str(path))
    assert run.path == path
    assert all([run.has_config, run.has_metrics, run.has_checkpoint])
    assert [file.name for file in (run.config_file, run.checkpoint_file)] == [CONFIG, CHECKPOINT]
    assert not opened


def test_each_file_is_read_once(path, opened):
    run = RunFolder(path)
    for _ in range(3):
        assert run.config["model"]["name"] == "condensenet20_dgc"
        assert run.metrics == [LINE]
        assert run.checkpoint.position.epoch == 1
        assert run.has_weights
        assert run.weights_file == path / WEIGHTS
    assert opened == {CONFIG: 1, METRICS: 1, CHECKPOINT: 1}
    run.weights()
    assert opened == {CONFIG: 1, METRICS: 1, CHECKPOINT: 1, WEIGHTS: 1}


def test_so_it_is_by_all_that_look_at_one(path, opened):
    run = RunFolder(path)
    model = load_model(run)
    assert input_size_of(run, model) == (3, 8, 8)
    assert Recipe.of_run(run) == RECIPE
    assert TrainedRun(run).recipe == RECIPE
    assert TrainedRun(run).untrained_model.config == model.config
    assert opened == {CONFIG: 1, WEIGHTS: 1}


def test_what_is_written_later_is_seen_by_a_new_one(path):
    run = RunFolder(path)
    assert (run.config["input_size"], run.metrics, run.checkpoint.position.epoch) == ([3, 8, 8], [LINE], 1)
    run.rewrite_config({"model": {"name": "resnet20"}})
    run.write_metrics(b"")
    save_checkpoint(path, Checkpoint(Position(epoch=2), RECIPE.to_dict()))
    assert (run.config["input_size"], run.metrics, run.checkpoint.position.epoch) == ([3, 8, 8], [LINE], 1)
    again = RunFolder(path)
    assert (again.config, again.metrics, again.checkpoint.position.epoch) == ({"model": {"name": "resnet20"}}, [], 2)


def test_what_is_written_is_read_again(tmp_path):
    run = RunFolder(tmp_path)
    run.write_config({"name": "resnet20", "num_classes": 10}, note="mine", classes=None)
    assert run.config == {"dgconv": __version__, "model": {"name": "resnet20", "num_classes": 10}, "note": "mine"}
    assert run.metrics == [], "nothing was written down"
    assert not any([run.has_metrics, run.has_checkpoint, run.has_weights])

    content = json.dumps(LINE).encode() + b"\n"
    run.write_metrics(content)
    assert (RunFolder(tmp_path).metrics, run.metrics_bytes) == ([LINE], content)

    tensors = {name: torch.full((2,), number) for number, name in enumerate(("last", "best", "diverged"))}
    run.write_weights({"x": tensors["last"]})
    run.write_best({"x": tensors["best"]})
    run.write_diverged({"x": tensors["diverged"]})
    assert run.has_weights
    assert torch.equal(run.weights()["x"], tensors["last"]), "those for use are the last ones"
    assert run.diverged_file.is_file()


def test_weights_may_lie_elsewhere(path):
    (path / "published").mkdir()
    os.rename(path / WEIGHTS, path / "published" / "net.safetensors")
    run = RunFolder(path)
    assert not run.has_weights
    run.rewrite_config(run.config | {"weights": "published/net.safetensors"})
    run = RunFolder(path)
    assert run.has_weights
    assert load_model(run).num_classes == 10


def cut_short(file):
    os.truncate(file, 20)


@pytest.mark.parametrize("lose", [Path.unlink, cut_short], ids=["deleted", "damaged"])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_weights_that_are_lost_are_written_again_by_a_run_that_can_go_on(path, lose, has_checkpoint):
    lose(path / WEIGHTS)
    if not has_checkpoint:
        (path / CHECKPOINT).unlink()
    with pytest.raises(UserError, match=WEIGHTS) as error:
        RunFolder(path).weights()
    assert error.value.resume == ([path] if has_checkpoint else [])
    assert str(error.value).endswith(f"dgconv.train.resume({str(path)!r})") == has_checkpoint


def test_published_weights_that_are_lost_are_to_be_fetched(path):
    """Though there is a checkpoint: to train anew gives others."""
    run = RunFolder(path)
    run.rewrite_config(run.config | {"weights": "net.safetensors"})
    with pytest.raises(UserError, match=rf"net\.safetensors is missing: .*{CONFIG} names it.* Fetch it again") as error:
        RunFolder(path).weights()
    assert error.value.resume == []


def test_a_run_stopped_in_its_first_epoch_can_go_on(path):
    (path / CONFIG).unlink()
    with pytest.raises(UserError, match="stopped in its first epoch") as error:
        _ = RunFolder(path).config
    assert error.value.resume == [path]


@pytest.mark.parametrize(
    ("change", "part", "message"),
    [
        (lambda f: ((f / CONFIG).unlink(), (f / CHECKPOINT).unlink()), "config", f"is not a run folder: .*{CONFIG}"),
        (lambda f: (f / CONFIG).write_text("{"), "config", rf"{CONFIG} cannot be read"),
        (lambda f: (f / CONFIG).write_text('{"input_size": [3, 0, 8]}'), "config", "input_size must be"),
        (lambda f: (f / METRICS).write_bytes(b"\xff"), "metrics", rf"{METRICS} cannot be read"),
        (lambda f: (f / METRICS).write_text("{}\n"), "metrics", rf"{METRICS}, line 1: '.*' must be a number"),
        (lambda f: (f / CHECKPOINT).unlink(), "checkpoint", rf"has no {CHECKPOINT} to resume from"),
        (lambda f: cut_short(f / CHECKPOINT), "checkpoint", rf"{CHECKPOINT} is damaged"),
    ],
)
def test_a_file_that_is_wrong_is_named_and_there_is_nothing_to_go_on_with(path, change, part, message):
    change(path)
    with pytest.raises(UserError, match=message) as error:
        getattr(RunFolder(path), part)
    assert error.value.resume == []


def test_a_file_is_no_run_folder(path):
    with pytest.raises(UserError, match="is a file, and not a run folder"):
        _ = RunFolder(path / WEIGHTS).config


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    before = {file: file.read_bytes() for file in path.iterdir()}
    monkeypatch.setattr("os.fsync", full)
    run = RunFolder(path)
    for write in (
        lambda: run.write_config({"name": "resnet20"}),
        lambda: run.write_metrics(b""),
        lambda: run.write_weights({}),
    ):
        with pytest.raises(OSError, match="No space left"):
            write()
    assert {file: file.read_bytes() for file in path.iterdir()} == before
