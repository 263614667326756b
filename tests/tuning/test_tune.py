"""A tuning from beginning to end: what it leaves behind, and what it does with little time, memory, or none to gain."""

import json
import os
import signal

import pytest
import torch
from processes import FORKSERVER

import dgconv
from dgconv import deploy
from dgconv.bench import forms
from dgconv.errors import UserError
from dgconv.models import load_model
from dgconv.models.others import allow, copies_of
from dgconv.runs.tensors import read_tensors
from dgconv.train import evaluate
from dgconv.train.side_by_side import Silent
from dgconv.tuning import planning, resume, run, steps, training, tune
from dgconv.tuning.goal import State
from tests.tuned_networks import of_norms, shades, trained_network

SETTINGS = {"epochs": 2, "batch_size": 16, "time": 5.0}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, data, trained):
    """Once, for all that looks at what is left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "RUNTIMES", [])
        patch.setattr(steps, "REPEATS", 1)
        patch.setattr(planning, "REPEATS", 1)
        patch.setattr(planning, "PAYS", 1000.0)
        return tune(trained, data.train, data.test, out=tmp_path_factory.mktemp("tune") / "run", **SETTINGS)


def test_the_package_offers_it(tuned):
    assert dgconv.tune is tune
    assert dgconv.plan is planning.plan


def test_the_network_given_is_not_changed(tuned, trained):
    assert not list(dgconv.dynamic_layers(trained))
    assert list(dgconv.dynamic_layers(tuned.model))


def test_the_rate_is_that_of_the_plan(tuned):
    assert {layer.pruning_rate for _, layer in dgconv.dynamic_layers(tuned.model)} == {0.75}
    assert tuned.plan.pruning_rate == 0.75


def test_what_is_in_the_folder_is_what_was_measured(tuned, data):
    """The fast form loads without any code of the network, and has the error that is told."""
    loaded = deploy.load(tuned.folder / "fast")
    fast = tuned.results["fast"]
    assert evaluate(loaded, data.test).error == pytest.approx(fast["error"], abs=1e-6)
    assert loaded.precision == fast["precision"]
    float_model = load_model(tuned.folder)
    rows = {row["what"]: row["error"] for row in tuned.results["rows"]}
    assert evaluate(float_model, data.test).error == pytest.approx(of_norms(rows), abs=1e-6)


def test_each_row_has_its_error_and_milliseconds(tuned):
    rows = tuned.results["rows"]
    assert [row["precision"] for row in rows].count("int8") == 2
    assert all(row["seconds"] > 0 and 0 <= row["error"] <= 100 for row in rows)
    assert "the network as it is" in str(tuned)


def test_the_page_names_every_layer_and_form(tuned):
    page = (tuned.folder / "report.html").read_text()
    assert all(layer.name in page for layer in tuned.plan.layers)
    assert tuned.results["verdict"] in page
    assert "torch" in page


def test_results_are_json(tuned):
    assert json.loads((tuned.folder / "results.json").read_text())["rows"] == tuned.results["rows"]


def test_a_second_tuning_does_not_write_into_the_folder(tuned, data, trained):
    with pytest.raises(UserError, match="not empty"):
        tune(trained, data.train, data.test, out=tuned.folder)


def weights_of(folder):
    return read_tensors(folder / "model.safetensors").tensors


class Halt(Exception):
    """Where a process would have been killed."""


@pytest.mark.slow
@pytest.mark.parametrize("line", ["measuring the network", "fine-tuning", "measuring again"])
def test_stopped_between_steps_and_resumed_it_is_the_same_to_the_bit(tuned, tmp_path, data, trained, line):
    def halt(told):
        if told.startswith(line):
            raise Halt

    folder = tmp_path / "run"
    request = run.Request(tuned.results["network"], None, run.DataTable(name="given"), run.Goal(**SETTINGS))
    with pytest.raises(Halt):
        run.begin(request, folder, data=data, plan_file=plan_of(tuned), tell=halt)
    again = resume(folder, data=data)
    assert again.results["settings"]["epochs"] == 2
    expected, got = weights_of(tuned.folder), weights_of(folder)
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def plan_of(tuned):
    return tuned.folder / "plan.json"


def test_given_data_must_be_given_again(tuned):
    with pytest.raises(UserError, match="give it again, with `data`"):
        resume(tuned.folder)


def test_no_time_for_an_epoch_hands_back_the_network_as_it_is(tmp_path, data, trained, monkeypatch):
    monkeypatch.setattr(training, "LEAST_LIMIT", 1e-3)
    monkeypatch.setattr(training.Training, "left", lambda self: 0.0)
    tuned = tune(trained, data.train, data.test, out=tmp_path / "run", epochs=50, batch_size=16)
    assert tuned.results["fast"]["network"] == "original"
    assert "not worth converting" in tuned.results["verdict"]
    assert any("the time ended after 0 of 50 epochs" in note for note in tuned.results["notes"])
    assert deploy.load(tmp_path / "run" / "fast")(torch.zeros(1, *data.input_size)).shape == (1, 3)


def test_what_does_not_pay_is_not_converted(tmp_path, data, trained, monkeypatch):
    monkeypatch.setattr(planning, "PAYS", 0.0)
    tuned = tune(trained, data.train, data.test, out=tmp_path / "run", **SETTINGS)
    assert not tuned.plan.is_worth_it
    assert "not worth converting" in tuned.results["verdict"]
    assert all(layer.reason for layer in tuned.plan.layers)
    assert not (tmp_path / "run" / "training").exists()


@pytest.mark.slow
def test_little_memory_takes_smaller_batches_and_says_so(tmp_path, data, trained, monkeypatch):
    asked = []

    def seconds(recipe, data, device):
        asked.append(recipe.training.batch_size)
        if recipe.training.batch_size > 8:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return 0.001

    monkeypatch.setattr(steps, "seconds_a_step", seconds)
    tuned = tune(trained, data.train, data.test, out=tmp_path / "run", epochs=1, batch_size=32)
    assert asked == [32, 16, 8]
    assert tuned.results["settings"]["batch_size"] == 8
    assert any("memory is short for batches of 16 images: 8 are taken" in note for note in tuned.results["notes"])


@pytest.mark.slow
def test_memory_that_runs_out_in_the_training_begins_it_with_smaller_batches(tmp_path, data, trained, monkeypatch):
    really, sizes = steps.train_until, []

    def train(recipe, *rest):
        sizes.append(recipe.training.batch_size)
        if len(sizes) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return really(recipe, *rest)

    monkeypatch.setattr(steps, "train_until", train)
    tuned = tune(trained, data.train, data.test, out=tmp_path / "run", epochs=1, batch_size=16)
    assert sizes == [16, 8]
    assert tuned.results["settings"]["batch_size"] == 8


def test_an_allowed_drop_lowers_the_rate(data, trained, tuned):
    """Down to rate 0, where nothing is left out."""
    model = load_model(tuned.folder)
    found, rate, error = steps.within_drop(model, data, -1.0, 50.0, lambda line: None)
    assert rate < 0.75
    assert 0 <= error <= 50
    assert {options["pruning_rate"] for options in found.config["converted"].values()} == {rate}


@pytest.mark.parametrize(("others", "kept"), [(5e-4, "original"), (3e-3, "tuned")])
def test_what_others_run_faster_as_it_is_stays_as_it_is(tmp_path, data, trained, monkeypatch, others, kept):
    monkeypatch.setattr(steps, "fastest", lambda bench, precision=None, **_: ("another runtime", others))
    monkeypatch.setattr(steps, "seconds_of", lambda bench, kind, precision: {"dense": 2e-3, "model": 1e-3}[kind])
    results = tune(trained, data.train, data.test, out=tmp_path / "run", **SETTINGS | {"epochs": 1}).results
    assert results["fast"]["network"] == kept
    assert results["verdict"].startswith("not worth converting") == (kept == "original")


def test_the_fastest_allowed_form_is_picked():
    candidates = [("original", "float32", 1.0, 3.0), ("tuned", "float32", 1.5, 1.0), ("tuned", "int8", 2.5, 0.5)]
    most = {"original": 1.0, "tuned": 2.0}
    assert steps.pick_form(candidates, most) == ("tuned", "float32")
    assert steps.pick_form(candidates, {"original": 0.0, "tuned": 0.0}) is None


class Killer(Silent):
    def __init__(self, last):
        self.last = last

    def epoch(self, index, metrics):  # while its checkpoint is being written
        if metrics.epoch == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def tune_until(folder, plan, last):
    forms.RUNTIMES[:] = []
    steps.REPEATS = planning.REPEATS = 1
    torch.set_num_threads(1)
    data = shades()
    allow("given:Sequential", copies_of(trained_network(data)))
    if (folder / "tune.json").exists():
        resume(folder, data=data, watch=lambda epochs: Killer(last))
    else:
        goal = run.Goal(epochs=8, batch_size=16)
        request = run.Request("given:Sequential", None, run.DataTable(name="given"), goal)
        run.begin(request, folder, data=data, plan_file=plan, watch=lambda epochs: Killer(last))


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same_to_the_bit(tuned, tmp_path):
    def run_until(folder, epoch):
        process = FORKSERVER.Process(target=tune_until, args=(folder, plan_of(tuned), epoch))
        process.start()
        process.join()
        assert process.exitcode == (-signal.SIGKILL if epoch else 0)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_until(whole, 0)
    for epoch in (2, 5, 0):
        run_until(killed, epoch)
    expected, got = weights_of(whole), weights_of(killed)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert State.read(killed).done["error"] == State.read(whole).done["error"]
