"""The user's own latency table: its rows, its arithmetic and its checks. Times themselves are not judged."""

import json
import statistics
import sys
import time

import pytest
import torch

from dgconv import create_model, dynamic_layers, load_model, save_model
from dgconv.bench import forms as bench_forms
from dgconv.bench import timing
from dgconv.bench.forms import Form, disagreement
from dgconv.bench.networks import find_networks
from dgconv.bench.run import rows_of, run_bench
from dgconv.bench.settle import settle_
from dgconv.cli import main
from dgconv.errors import UserError
from dgconv.ops import native

FORMS = [
    ("dense", "torch"), ("dense", "ONNX Runtime"), ("dense", "OpenVINO"), ("dense", "prepared"),
    ("sgc", "torch"), ("sgc", "prepared"), ("dgc", "torch"), ("dgc", "prepared"),
]  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A tiny network on disk, as a training leaves it; and nothing is waited for before a call is timed."""
    monkeypatch.setattr(timing, "PAUSE", 0.0)
    monkeypatch.setattr(timing, "GET_GOING", 0.0)
    model = create_model("condensenet20_dgc", stages=(1, 1), growth=(4, 8), pruning_rate=0.5, num_classes=7)
    settle_(model, (3, 12, 12))
    save_model(model, tmp_path / "run", input_size=(3, 12, 12))
    return tmp_path / "run"


def bench_of(folder):
    networks = find_networks(str(folder))
    return run_bench(networks.title, networks.by_kind, networks.input_size, threads=(1,), repeats=1)


def nothing(threads, images):
    raise AssertionError("not called")


def test_ratios_and_quartiles_are_those_of_the_times():
    nchw, nhwc = Form("dense", "torch", nothing, "NCHW"), Form("dense", "torch", nothing, "NHWC")
    gone, other = Form("dense", "OpenVINO", nothing), Form("dgc", "prepared", nothing)
    seconds = {nchw: [4.0, 5.0, 9.0], nhwc: [3.0, 8.0, 2.0], other: [1.0, 1.5, 2.0]}
    rows = rows_of([nchw, nhwc, gone, other], seconds, {gone: "not installed"})
    assert [(row.kind, row.form, row.layout) for row in rows] == [
        ("dense", "torch", "NHWC"), ("dense", "OpenVINO", ""), ("dgc", "prepared", ""),
    ]  # fmt: skip
    assert [row.median for row in rows] == [3.0, None, 1.5]
    assert [row.speedup for row in rows] == [1.0, None, 2.0]
    assert rows[0].quartiles == (2.5, 5.5)
    assert rows[1].missing == "not installed"


def test_long_names_fit_into_the_title_of_the_picture():
    from dgconv.bench.picture import NAME_LETTERS, _end_of

    assert _end_of("condensenet20_dgc") == "condensenet20_dgc"
    assert _end_of("a" * 50 + "/run") == "…" + "a" * (NAME_LETTERS - 5) + "/run"


@pytest.mark.slow
def test_command(run, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    threads_before = torch.get_num_threads()
    options = ["--repeats", "2", "--threads", "1", "2", "--batch-sizes", "1", "3"]
    files = ["--json", str(tmp_path / "bench.json"), "--picture", str(tmp_path / "bench.svg")]
    main(["bench", str(run), *options, *files])
    captured = capsys.readouterr()
    assert torch.get_num_threads() == threads_before
    result = json.loads((tmp_path / "bench.json").read_text())
    assert (result["pruning_rate"], result["input_size"]) == (0.5, [3, 12, 12])
    assert {"hardware", "cores", "torch", "date", "onnxruntime", "openvino"} <= result["machine"].keys()
    cases = [(measured["batch_size"], measured["threads"]) for measured in result["measurements"]]
    assert cases == [(1, 1), (1, 2), (3, 1), (3, 2)]
    for measured in result["measurements"]:
        assert [(row["kind"], row["form"]) for row in measured["rows"]] == FORMS
        assert measured["repeats"] == 2
        timed = [row for row in measured["rows"] if row["median"] is not None]
        missing = {row["form"]: row["missing"] for row in measured["rows"] if row["median"] is None}
        assert missing in ({}, {"OpenVINO": "not installed"})
        assert ("convolution" in measured["split"]) == native.available()
        assert all(seconds >= 0 for seconds in measured["split"].values())
        best = min(row["median"] for row in timed if row["kind"] == "dense")
        for row in timed:
            low, high = row["quartiles"]
            assert 0 < low <= row["median"] <= high
            assert row["speedup"] == pytest.approx(best / row["median"])
    assert "differs" not in captured.err
    assert "batch 3" in captured.out
    assert "DGC, prepared" in captured.out
    assert "fastest dense form" in captured.out
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["onnxruntime", "openvino", "onnxscript"])
def test_a_runtime_that_is_not_installed_is_told_in_its_row(run, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    [measured] = bench_of(run).measurements
    named = {row.form: row for row in measured.rows if row.kind == "dense"}
    wanted = {"onnxruntime": ["ONNX Runtime"], "openvino": ["OpenVINO"], "onnxscript": ["ONNX Runtime", "OpenVINO"]}
    for form in wanted[missing]:
        assert (named[form].median, named[form].missing) == (None, "not installed")
    assert named["torch"].median


def test_repeats_are_interleaved(monkeypatch):
    """Every repeat runs each form untimed and then once timed, before the next repeat begins."""
    monkeypatch.setattr(timing, "PAUSE", 0.0)
    monkeypatch.setattr(timing, "GET_GOING", 0.0)
    calls = []
    seconds = timing.time_side_by_side({name: lambda name=name: calls.append(name) for name in "abc"}, 4)
    assert "".join(calls) == "abc" + "aabbcc" * 5  # one more to see how long a repeat takes
    assert {form: len(values) for form, values in seconds.items()} == {"a": 4, "b": 4, "c": 4}


def test_a_form_gets_going_after_a_pause():
    calls, start = [], time.perf_counter()
    timing._settle(lambda: calls.append(time.perf_counter()))
    assert calls[0] - start >= timing.PAUSE
    assert len(calls) > 1
    assert time.perf_counter() - calls[0] >= 0.9 * timing.GET_GOING


@pytest.mark.slow
def test_forms_that_disagree_are_told(run, monkeypatch):
    """A network that is not the one it should be: the weights of the prepared one are changed behind its back."""
    original = bench_forms.prepare

    def wrong(model):
        other = original(model)
        return lambda x: 1.01 * other(x)

    monkeypatch.setattr(bench_forms, "prepare", wrong)
    warnings = bench_of(run).warnings
    told = [warning for warning in warnings if "differs from torch by 0.01" in warning]
    assert len(told) == 3
    assert told[0].startswith("batch 1: dense, prepared")
    nan = {
        Form("dense", "torch", nothing): lambda: torch.ones(2),
        Form("dense", "b", nothing): lambda: torch.ones(2) / 0 * 0,
    }
    assert len(disagreement(nan)) == 1, "a NaN is no agreement"


def test_networks_of_a_run(run):
    networks = find_networks(str(run))
    names = {kind: model.config["name"] for kind, model in networks.by_kind.items()}
    assert names == {"dense": "condensenet20", "sgc": "condensenet20_sgc", "dgc": "condensenet20_dgc"}
    for model in networks.by_kind.values():
        assert (model.config["stages"], model.num_classes, model.training) == ([1, 1], 7, False)
    x, saved = torch.randn(2, 3, 12, 12), load_model(run)
    assert torch.equal(networks.by_kind["dgc"](x), saved(x)), "the weights of the run"
    assert "pruning_rate" not in networks.by_kind["dense"].config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "dynamic", "size", "classes"),
    [
        ("resnet20", "resnet20_dgc", (3, 32, 32), 10),
        ("condensenet20_sgc", "condensenet20_dgc", (3, 32, 32), 10),
        ("cifar100_condensenet50_dgc", "condensenet50_dgc", (3, 32, 32), 100),
    ],
)
def test_networks_by_name(source, dynamic, size, classes):
    networks = find_networks(source, pruning_rate=0.6)
    assert networks.by_kind["dgc"].config["name"] == dynamic
    assert networks.input_size == size
    assert networks.by_kind["dgc"].num_classes == networks.by_kind["dense"].num_classes == classes
    assert {layer.pruning_rate for _, layer in dynamic_layers(networks.by_kind["dgc"])} == {0.6}
    for model in networks.by_kind.values():
        logits = model(torch.randn(4, *size))
        assert logits.isfinite().all()
        assert 1e-3 < logits.abs().max() < 1e3, "ordinary numbers"


def test_a_fresh_global_gate_prunes_at_its_rate():
    networks = find_networks("condensenet20_dgcg", pruning_rate=0.6)
    shares = []
    for _, layer in dynamic_layers(networks.by_kind["dgc"]):
        layer.gate.register_forward_hook(lambda gate, args, _: shares.append(gate.mask(args[0]).float().mean()))
    networks.by_kind["dgc"](torch.randn(16, 3, 32, 32))
    assert statistics.fmean(map(float, shares)) == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing_like_it"], "'nothing_like_it' is no run folder, model or recipe"),
        (["my_network.py"], "a network of your own is timed by dgconv.bench.measure"),
        (["condensenet20_dgc", "--batch-sizes", "0"], "--batch-sizes must be at least 1, got 0"),
        (["condensenet20_dgc", "--threads", "-1"], "threads must be at least 1, got -1"),
        (["condensenet20_dgc", "--repeats", "0"], "repeats must be at least 1, got 0"),
        (["condensenet20_dgc", "--input-size", "1", "32", "32"], "--input-size must be 3 channels"),
        (["run", "--input-size", "3", "1", "1"], "does not take images of 3 x 1 x 1"),
        (["condensenet20_dgc", "--pruning-rate", "2"], "must be in [0, 1), got 2"),
        (["condensenet20_dgc", "--picture", "bench.jpeg2"], "a picture must end in one of .png"),
        (["condensenet20_dgc", "--json", "no/where.json"], "make it first"),
        (["run", "--pruning-rate", "0.25"], "leave --pruning-rate out"),
    ],
)
def test_wrong_use(run, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *arguments])
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).split())
    assert "Traceback" not in captured.err


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    from dgconv.bench.picture import check_picture

    with pytest.raises(UserError, match=r'pip install "dgconv\[figures\]"'):
        check_picture(tmp_path / "bench.png")
