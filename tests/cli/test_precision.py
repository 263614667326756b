"""The commands that take int8 calibrate on training images of the run, and say in which precision figures are."""

import copy
import json

import pytest
import torch

from dgconv.analysis.rate import RANGE_IMAGES, calibration_images
from dgconv.analysis.trained_run import TrainedRun
from dgconv.bench import timing
from dgconv.cli import main
from dgconv.deploy import PreparedModel, load, precision, prepare
from dgconv.deploy.export.outputs import difference


def logits_of_bias(model):
    """What stands for int8 here: a network whose answers are known."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.classifier.weight.zero_()
    return model


@pytest.fixture
def calibrations(monkeypatch):
    """What is given to prepare in int8."""
    given = []

    def prepare_int8(model, precision="float32", calibration=None, example=None, force=False, freeze=None):
        if precision == "float32":
            return prepare(model)
        given.append(calibration)
        return prepare(logits_of_bias(model))

    monkeypatch.setattr(precision, "prepare", prepare_int8)
    monkeypatch.setattr(PreparedModel, "precision", "int8", raising=False)
    return given


def test_eval(head_folder, calibrations, capsys):
    main(["eval", str(head_folder), "--precision", "int8", "--json"])
    result = json.loads(capsys.readouterr().out)
    run = TrainedRun(head_folder)
    assert result["precision"] == "int8"
    answer = int(run.model.classifier.bias.argmax())
    targets = torch.cat([target for _, target in run.data.test.batches(64, train=False)])
    assert result["error"] == pytest.approx(100 * float((targets != answer).double().mean()))
    assert result["macs"] == {name: run.macs(name).macs for name in ("paper", "authors")}
    (images,) = calibrations
    assert torch.equal(images, calibration_images(run.data.train, count=RANGE_IMAGES)), "the same ones each time"
    assert len(images) == RANGE_IMAGES
    main(["eval", str(head_folder), "--precision", "int8"])
    assert "test images, int8 " in capsys.readouterr().out


def test_export(head_folder, calibrations, tmp_path, capsys):
    main(["export", str(head_folder), "--precision", "int8", "--out", str(tmp_path / "fast")])
    told = " ".join(capsys.readouterr().out.split())
    assert "fast: prepared, int8, " in told
    assert len(calibrations[0]) == RANGE_IMAGES
    run = TrainedRun(head_folder)
    with torch.no_grad():
        images = calibrations[0][:7]
        expected, got = run.model(images), logits_of_bias(run.model)(images)
    gap = max(difference(got[:batch], expected[:batch]) for batch in (1, 7))
    assert f"differs from the network by {gap:.1g} of" in told, "on images of the kind it was calibrated for"
    x = torch.randn(2, *run.input_size)
    torch.testing.assert_close(load(tmp_path / "fast")(x), logits_of_bias(run.model)(x))


def test_what_stays_in_float32_is_not_called_int8(head_folder, calibrations, monkeypatch, capsys):
    monkeypatch.setattr(PreparedModel, "precision", "float32", raising=False)
    with pytest.raises(SystemExit, match="2"):
        main(["eval", str(head_folder), "--precision", "int8"])
    assert "the network cannot be had in int8 here" in capsys.readouterr().err


def test_bench(head_folder, calibrations, capsys, monkeypatch):
    monkeypatch.setattr(timing, "PAUSE", 0.0)
    monkeypatch.setattr(timing, "GET_GOING", 0.0)
    monkeypatch.setattr("dgconv.bench.forms.RUNTIMES", [])
    options = ["--precision", "int8", "float32", "--threads", "1", "--repeats", "1"]
    main(["bench", str(head_folder), *options, "--json"])
    captured = capsys.readouterr()
    (measured,) = json.loads(captured.out)["measurements"]
    rows = [(row["kind"], row["form"], row["precision"]) for row in measured["rows"]]
    kinds = ("dense", "sgc", "dgc")
    assert rows[:6] == [(kind, form, "float32") for kind in kinds for form in ("torch", "prepared")]
    assert rows[6:] == [(kind, "prepared", "int8") for kind in kinds]
    assert all(row["speedup"] for row in measured["rows"][:6])
    assert [row["speedup"] for row in measured["rows"][6:]] == [None] * 3, "no rival in int8"
    assert measured["fastest_rival"] == {"float32": "torch"}
    assert len(calibrations) == 3
    assert all(torch.equal(images, calibrations[0]) for images in calibrations), "all see the same images"
    assert "DGC, prepared int8 differs from torch by" in captured.err
    main(["bench", str(head_folder), *options])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Speed-up in int8 is over the fastest rival with the dense network: none." in shown


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_choices_are_frozen_where_it_is_asked_for(head_folder, tmp_path, capsys, precision):
    main(["export", str(head_folder), "--precision", precision, "--freeze", "--out", str(tmp_path / "fast"), "--json"])
    assert json.loads(capsys.readouterr().out)["format"] == "prepared"
    assert load(tmp_path / "fast").graph


def test_other_formats_have_no_choices_to_freeze(head_folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["export", str(head_folder), "--freeze", "--format", "onnx", "--out", str(tmp_path / "net.onnx")])
    assert stop.value.code == 2
    assert "--freeze is for the format prepared, not for onnx" in " ".join(capsys.readouterr().err.split())
