"""'dgconv compare' as a user meets it: files, reuse, resume, and what it refuses."""

import csv
import json
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from processes import run_here

from dgconv.cli import main
from dgconv.cli._display import TrainingDisplay
from dgconv.compare import CompareSettings, Comparison
from dgconv.compare.latency import measure_latencies
from dgconv.compare.methods import as_it_runs, find_rival, rivals
from dgconv.compare.picture import figure_of
from dgconv.compare.run import budget_note
from dgconv.compare.table import to_markdown
from dgconv.layers.method import METHODS
from dgconv.models import create_model
from dgconv.runs.metrics import read_metrics

SMALL = ["--methods", "dense,sgc,l1", "--image-size", "8", "--width", "8", "--epochs", "2", "--batch-size", "128"]


def dgconv_compare(capsys, *args):
    return run_here(capsys, "compare", *args)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    main(["compare", *SMALL, "--out", str(folder)])
    return folder


@pytest.mark.slow
def test_writes_all_files(compared):
    written = json.loads((compared / "compare.json").read_text())
    by_name = {method["method"]: method for method in written["methods"]}
    assert list(by_name) == ["dense", "sgc", "l1"]
    dense = by_name["dense"]["macs"]["paper"]
    for name in ("sgc", "l1"):
        assert by_name[name]["macs"]["paper"] / dense == pytest.approx(0.5, abs=0.05)
        assert by_name[name]["share"] == pytest.approx(by_name[name]["macs"]["paper"] / dense)
        assert by_name[name]["parameters"] < by_name["dense"]["parameters"]
        assert by_name[name]["macs"]["authors"] > by_name[name]["macs"]["paper"]
    for method in written["methods"]:
        assert 0 < method["latency_quartiles_ms"][0] <= method["latency_ms"] <= method["latency_quartiles_ms"][1]
        assert method["native_share"] == 1, "all three are plain or grouped networks by now"
        run = method["seeds"][0]
        assert read_metrics(compared / run["run"])[-1]["test_error"] == run["error"] == method["error"]
        assert method["error_spread"] is None, "of one seed"

    rows = list(csv.DictReader((compared / "compare.csv").open()))
    assert [row["method"] for row in rows] == ["dense", "SGC", "L1"]
    assert rows[0]["speed-up"] == "1.00x"
    text = (compared / "compare.md").read_text()
    assert text == to_markdown(Comparison.from_dict(written))
    assert text.count("\n|") == 2 + 3
    assert (compared / "compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("slowest", [1.5, 300.0])
def test_times_can_be_read_from_the_picture(compared, slowest):
    comparison = Comparison.from_dict(json.loads((compared / "compare.json").read_text()))
    times = (0.11, 0.11, 0.11 * slowest)
    methods = [
        replace(method, latency_ms=time, latency_quartiles_ms=(time, time))
        for method, time in zip(comparison.methods, times, strict=True)
    ]
    figure = figure_of(replace(comparison, methods=methods))
    figure.draw_without_rendering()
    axes = figure.axes[1]
    low, high = axes.get_xlim()
    shown = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert len(shown) >= 1
    assert all(float(label.get_text()) for label in shown), "in plain digits"
    boxes = [label.get_window_extent() for label in shown]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert not [tick for tick in axes.xaxis.get_minorticklabels() if tick.get_text()]


@pytest.mark.slow
def test_reuses_what_is_there_and_adds_a_seed(compared, capsys):
    def trained():
        return {file: file.stat().st_mtime_ns for file in compared.glob("*-seed0/checkpoint.safetensors")}

    before, first = trained(), json.loads((compared / "compare.json").read_text())
    code, out, _ = dgconv_compare(capsys, *SMALL, "--seeds", 0, 1, "--out", compared, "--json")
    assert code == 0
    assert len(before) == 3
    assert trained() == before
    again = json.loads(out)
    assert again == json.loads((compared / "compare.json").read_text())
    for old, new in zip(first["methods"], again["methods"], strict=True):
        assert new["seeds"][0] == old["seeds"][0]
        errors = [seed["error"] for seed in new["seeds"]]
        assert len(errors) == 2
        assert new["error"] == pytest.approx(sum(errors) / 2)
        assert new["error_spread"] == pytest.approx(abs(errors[0] - errors[1]) / 2**0.5)


@pytest.mark.slow
def test_another_recipe_is_refused_with_the_difference(compared, capsys):
    code, _, err = dgconv_compare(capsys, *SMALL, "--learning-rate", 0.02, "--out", compared)
    assert code == 2
    assert "dense-seed0" in err
    assert "learning_rate was 0.05, is 0.02" in err


@pytest.mark.slow
def test_interrupted_it_goes_on(tmp_path, capsys, monkeypatch):
    shown = TrainingDisplay.epoch

    def interrupt(self, index, metrics):
        shown(self, index, metrics)
        if index == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingDisplay, "epoch", interrupt)
    code, _, err = dgconv_compare(capsys, *SMALL, "--out", tmp_path / "it")
    assert code == 128 + signal.SIGINT
    assert "The same command goes on" in err
    monkeypatch.undo()
    assert len(read_metrics(tmp_path / "it/dense-seed0")) == 2
    assert len(read_metrics(tmp_path / "it/sgc-seed0")) == 1
    # another one died before its first checkpoint
    (tmp_path / "it/l1-seed0").mkdir(exist_ok=True)
    (tmp_path / "it/l1-seed0/metrics.jsonl").write_text("")

    code, out, _ = dgconv_compare(capsys, *SMALL, "--out", tmp_path / "it")
    assert code == 0
    assert [line["epoch"] for line in read_metrics(tmp_path / "it/sgc-seed0")] == [1, 2]
    assert "how it runs" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--methods", "dense,magic"], "unknown method 'magic'"),
        (["--methods", "dense,dense"], "named twice"),
        (["--methods", ","], "at least one method"),
        (["--backbone", "resnet19"], "unknown backbone 'resnet19'. Did you mean"),
        (["--data", "letters"], "unknown data set"),
        (["--data", "cifar10"], "needs --data-dir"),
        (["--budget", "0"], "above 0 and up to 1, got 0"),
        (["--budget", "1.5"], "above 0 and up to 1, got 1.5"),
        (["--seeds", "1", "1"], "--seeds must differ"),
        (["--epochs", "0"], "epochs must be a whole number from 1"),
        (["--methods", "dense,lccn", "--budget", "0.05"], "lccn cannot bring resnet20 to 0.05 of its MACs"),
        (["--methods", "sfp", "--budget", "0.01"], "pruning cannot bring ResNet to 0.01"),
    ],
)
def test_wrong_use_is_told_before_anything_is_trained(args, said, tmp_path, capsys):
    base = [] if "--methods" in args else ["--methods", "dense,sgc"]
    code, _, err = dgconv_compare(capsys, *base, *args, "--out", tmp_path / "out")
    assert code == 2
    assert said in " ".join(err.split())
    assert not (tmp_path / "out").exists()


def test_a_missed_budget_is_told():
    assert budget_note(0.54, 0.5, "flgc") == ""
    assert "56.0 % of the MACs instead of 50 %" in budget_note(0.56, 0.5, "flgc")
    assert budget_note(1.0, 0.5, "dense") == "", "which is what the others are held against"


def test_seeds_and_defaults():
    assert CompareSettings().shared["image_size"] == 16
    assert CompareSettings(data="cifar10").shared["epochs"] == 30
    assert CompareSettings(epochs=3).shared["epochs"] == 3


def test_every_method_of_ours_is_compared():
    assert set(rivals()) == {"dense", *METHODS}


@pytest.mark.slow
def test_a_method_of_ones_own_is_no_hindrance():
    probe = "from dgconv.layers.method import METHODS; METHODS['mine'] = METHODS['dgc']; import dgconv.cli as cli"
    subprocess.run([sys.executable, "-c", f"{probe}; cli.main(['models', '*_mine'])"], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lgc", "flgc"])
def test_runs_without_masks(method):
    model = create_model(find_rival(method).model_name("resnet20"), width=8).eval()
    form = as_it_runs(model)
    assert not any("mask" in name or "scores" in name for name in form.state_dict())
    images = torch.rand(2, 3, 8, 8)
    latency = measure_latencies({method: form}, images)[method]
    assert latency.disagreement < 1e-5


def test_every_method_has_its_lines_in_the_docs():
    page = (Path(__file__).parents[2] / "docs/methods.md").read_text()
    for rival in rivals().values():
        assert rival.name == "dense" or f"### {rival.title}" in page
