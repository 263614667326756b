"""The form our training step is compared with computes the same, and the benchmark runs."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from dgconv import DynamicGroupConv2d
from dgconv.analysis.trained_run import TrainedRun
from dgconv.ops import native
from dgconv.train import lasso_loss
from reproduce import tables

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import loading  # noqa: E402
import norm_statistics  # noqa: E402
import precision_by_isa  # noqa: E402
import training_step  # noqa: E402
import tune_any_network  # noqa: E402
from authors_form import AuthorsFormConv2d, take_lasso  # noqa: E402
from forms import TrainingStep  # noqa: E402

GEOMETRIES = [
    {"kernel_size": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "stride": 2, "bias": True},
]


def pair_of_layers(pruning_rate: float, **geometry: int | bool) -> tuple[DynamicGroupConv2d, AuthorsFormConv2d]:
    ours = DynamicGroupConv2d(
        24, 32, pruning_rate=pruning_rate, keep_rule="round", tie_rule="drop", squeeze=4, **geometry
    )
    if ours.bias is not None:
        nn.init.normal_(ours.bias)
    theirs = AuthorsFormConv2d(24, 32, pruning_rate=pruning_rate, squeeze=4, **geometry)
    theirs.load_from(ours)
    return ours, theirs


def gradients(ours: DynamicGroupConv2d, theirs: AuthorsFormConv2d) -> dict[str, tuple[Tensor, Tensor]]:
    """Of each of our parameters: ours, and the authors' heads put together."""
    pairs = {"weight": (ours.weight.grad, torch.stack([h.conv.weight.grad for h in theirs.heads], 1).flatten(0, 1))}
    if ours.bias is not None:
        pairs["bias"] = (ours.bias.grad, torch.stack([h.conv.bias.grad for h in theirs.heads], 1).flatten())
    generator = {"weight1": "fc1.weight", "weight2": "fc2.weight", "bias": "fc2.bias"}
    for name, path in generator.items():
        heads = torch.stack([head.get_parameter(path).grad for head in theirs.heads])
        pairs[f"generator.{name}"] = (ours.generator.get_parameter(name).grad, heads)
    return pairs


@pytest.mark.parametrize("pruning_rate", [0, 0.55, 0.75])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_authors_form_computes_what_ours_does(geometry, pruning_rate):
    ours, theirs = pair_of_layers(pruning_rate, **geometry)
    x = torch.randn(5, 24, 9, 8)
    x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = theirs(x_theirs), ours(x_ours)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)

    lasso, expected_lasso = take_lasso(theirs), lasso_loss([ours.saliency])
    torch.testing.assert_close(lasso, expected_lasso, rtol=1e-5, atol=1e-5)
    assert theirs.lasso is None

    weights = torch.randn_like(out) / out[0].numel() ** 0.5
    ((out * weights).sum() + lasso).backward()
    ((expected * weights).sum() + expected_lasso).backward()
    torch.testing.assert_close(x_theirs.grad, x_ours.grad, rtol=1e-4, atol=1e-5)
    for name, (actual, theirs_grad) in gradients(ours, theirs).items():
        torch.testing.assert_close(actual, theirs_grad, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


def test_a_head_whose_saliencies_tie_gives_zero():
    ours, theirs = pair_of_layers(0.75, kernel_size=1)
    ours.generator.reset_to_ones()
    theirs.load_from(ours)
    x = torch.randn(2, 24, 4, 4)
    assert not theirs(x).any()
    assert not ours(x).any()


@pytest.mark.parametrize("layer", [AuthorsFormConv2d, DynamicGroupConv2d])
def test_a_step_trains_and_keeps_no_graph(layer):
    step = TrainingStep(layer, "condensenet20", 8, "cpu")
    losses = [float(step()) for _ in range(6)]
    assert losses[-1] < losses[0]
    assert all(parameter.grad is None for parameter in step.model.parameters())
    assert not any(getattr(module, name, None) for module in step.model.modules() for name in ("lasso", "saliency"))


def test_the_fused_step_is_the_plain_step():
    """What a CUDA graph captures, as far as a CPU can run it."""
    plain, fused = (TrainingStep(DynamicGroupConv2d, "condensenet20", 4, "cpu", fused=fused) for fused in (False, True))
    for _ in range(3):
        torch.testing.assert_close(fused(), plain(), rtol=1e-4, atol=1e-5)


def run_benchmark(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "training_step.py"), "--device", "cpu", *args]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as all tests
    return subprocess.run(command, capture_output=True, text=True, env=one_thread)


@pytest.mark.slow
def test_benchmark_runs_on_a_cpu(tmp_path):
    file = tmp_path / "result.json"
    forms = ["--forms", "ours", "authors"]
    done = run_benchmark("--models", "condensenet20", "--batch-sizes", "4", "--repeats", "1", *forms, "--json", file)
    assert done.returncode == 0, done.stderr
    assert "faster" in done.stdout
    result = json.loads(file.read_text())
    assert result.keys() == {"hardware", "threads", "torch", "date", "rows"}
    assert [row["form"] for row in result["rows"]] == ["authors", "ours", "authors, again"]
    for row in result["rows"]:
        assert row.keys() == {"model", "batch_size", "form", "seconds", "spread", "bytes", "reserved", "loss"}
        assert (row["model"], row["batch_size"]) == ("condensenet20", 4)
        assert row["seconds"] > 0
        assert row["bytes"] >= 0
        assert row["loss"] > 0


@pytest.fixture
def benchmark_here(monkeypatch, capsys):
    """Runs the benchmark in this process, but for what it starts itself; exit code, output and standard error."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*args: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["training_step.py", "--device", "cpu", *args])
        with pytest.raises(SystemExit) as ended:
            training_step.main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_benchmark_shows_a_failure_and_goes_on(benchmark_here):
    code, shown, _ = benchmark_here(
        "--models", "no-such-model", "--batch-sizes", "4", "--repeats", "1", "--forms", "ours", "--json"
    )
    assert code == 1
    (row,) = json.loads(shown)["rows"]
    assert row["error"].startswith("failed: ")
    assert "no-such-model" in row["error"]


def test_benchmark_has_no_graph_on_a_cpu(benchmark_here):
    code, _, told = benchmark_here("--forms", "ours graph")
    assert code == 2
    assert "on a CPU" in told


@pytest.mark.slow
def test_recording_says_what_is_wrong_with_the_data_folder(tmp_path):
    command = [sys.executable, BENCHMARKS / "recording.py", "--data-dir", tmp_path / "nowhere", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr
    assert "Traceback" not in done.stderr


def test_statistics_of_norms_are_taken_anew(head_folder, global_folder, tmp_path, monkeypatch, capsys):
    file = tmp_path / "norms.json"
    for folders in ([head_folder, global_folder], [head_folder]):  # the last one again, in the place of its row
        monkeypatch.setattr(sys, "argv", ["", *map(str, folders), "--images", "256", "--json", str(file)])
        norm_statistics.main()
    first, second = json.loads(file.read_text())["rows"]
    assert (first["name"], second["name"]) == ("condensenet20_dgc-digits", "condensenet20_dgcg-digits")
    run = TrainedRun(head_folder)
    assert first["error"] == run.error
    assert f"{run.error:.2f} % -> {first['error_anew']:.2f} %" in capsys.readouterr().out
    batches = run.data.train.batches(64, train=True, generator=torch.Generator().manual_seed(0))
    images = [x for x, _ in islice(batches, 4)]
    norm = next(module for module in run.model.modules() if isinstance(module, nn.BatchNorm2d))
    weight = run.model.state_dict()["classifier.weight"].clone()
    assert norm_statistics.measure(run, 256) == first
    stem = next(module for module in run.model.modules() if isinstance(module, nn.Conv2d))
    assert torch.allclose(norm.running_mean, torch.stack([stem(x).mean((0, 2, 3)) for x in images]).mean(0), atol=1e-5)
    assert torch.equal(run.model.state_dict()["classifier.weight"], weight)


def test_norm_statistics_says_which_run_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as stopped:
        norm_statistics.main()
    assert stopped.value.code == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.slow
def test_loading_is_timed_with_and_without_checks(tmp_path, monkeypatch):
    options = ["--model", "condensenet20_dgc", "--repeats", "1", "--json", str(tmp_path / "loading.json")]
    monkeypatch.setattr(sys, "argv", ["loading.py", *options])
    loading.main()
    found = json.loads((tmp_path / "loading.json").read_text())
    assert found["ratio_to_unchecked"] == found["checked"] / found["unchecked"] > 0


@pytest.mark.parametrize(
    ("ours", "tuned", "others", "kept", "verdict", "right"),
    [
        (3.0, 1.0, 2.0, "tuned", "2.00x faster", True),
        (3.0, 1.0, 2.0, "original", "not worth converting: ", False),
        (3.0, 2.5, 2.0, "original", "not worth converting: ", True),
        (3.0, 2.5, 2.0, "tuned", "0.80x faster", False),
        (1.0, 1.5, 2.0, "original", "1.00x faster", False),
    ],
)
def test_what_a_tuning_hands_back_is_judged(ours, tuned, others, kept, verdict, right):
    milliseconds = {"float32": {"ONNX Runtime": others, "ours": ours, "tuned": tuned}, "int8": {"ours": 5.0}}
    results = {"fast": {"network": kept, "precision": "float32"}, "verdict": verdict}
    assert tune_any_network.is_right(results, milliseconds) is right


@pytest.mark.slow
def test_networks_of_timm_go_through_a_tuning_once(tmp_path, monkeypatch):
    for split, images in (("train", 32), ("test", 16)):
        for number in range(images):
            place = tmp_path / "photos" / split / f"class{number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (120 * (number % 2), 5 * number, 0)).save(place / f"{number}.png")
    file = tmp_path / "benchmarks/results/tune_any_network.json"
    file.parent.mkdir(parents=True)
    options = ["--networks", "test_resnet", "--size", "32", "--images", "16", "8", "--time", "1"]
    arguments = [str(tmp_path / "photos"), "--data", "folder", *options, "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["", *arguments, "--json", str(file)])
    tune_any_network.main()
    (row,) = json.loads(file.read_text())["rows"]
    assert 0 < row["native share"] <= 1
    assert {"ours", "torch"} <= row["milliseconds"]["float32"].keys()
    assert row["difference"] < 0.5
    assert "`test_resnet`" in tables.tuned_networks(tmp_path)
    failed = subprocess.CompletedProcess([], 2, b"one line\nthe last line\n")
    monkeypatch.setattr(tune_any_network.subprocess, "run", lambda *args, **kwargs: failed)  # what is there is read
    monkeypatch.setattr(sys, "argv", ["", *arguments[:5], "test_efficientnet", *arguments[5:], "--json", str(file)])
    assert tune_any_network.main() == 1
    again, other = json.loads(file.read_text())["rows"]
    assert again == row
    assert other["error"] == "the last line"


@pytest.mark.slow
@pytest.mark.skipif(not native.available(), reason="needs the native kernels")
def test_precisions_are_compared_by_instruction_set(tmp_path, monkeypatch):
    file = tmp_path / "benchmarks/results/precision_by_isa.json"
    file.parent.mkdir(parents=True)
    options = ["--isas", "portable", "--networks", "MobileNetV2", "--size", "32", "--seconds", "0.1"]
    monkeypatch.setattr(sys, "argv", [precision_by_isa.__file__, *options, "--json", str(file)])
    precision_by_isa.main()
    (row,) = json.loads(file.read_text())["rows"]
    assert row["instructions"] == "portable"
    assert row["milliseconds"].keys() == {"float32", "int8"}
    assert bool(row["told"]) is (row["chosen"] == "float32")
    assert "| portable | MobileNetV2 |" in tables.precision_by_isa(tmp_path)


def test_a_precision_is_right_if_it_is_the_faster_one_and_said():
    told = ("float32 is used: it is faster",)
    assert precision_by_isa.is_right("float32", told, {"float32": 1.0, "int8": 2.0})
    assert precision_by_isa.is_right("int8", (), {"float32": 1.0, "int8": 1.04})
    assert not precision_by_isa.is_right("float32", (), {"float32": 1.0, "int8": 2.0})
    assert not precision_by_isa.is_right("int8", (), {"float32": 1.0, "int8": 1.1})
