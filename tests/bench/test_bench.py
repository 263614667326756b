"""The user's own latency table: its rows, its arithmetic and its checks. Times themselves are not judged."""

import json
import logging
import statistics
import sys
import time
from math import nan
from types import SimpleNamespace

import pytest
import torch

from dgconv import create_model, dynamic_layers, load_model, save_model
from dgconv.bench import forms as bench_forms
from dgconv.bench import timing
from dgconv.bench.forms import Form
from dgconv.bench.networks import find_networks
from dgconv.bench.run import disagreements, rows_of, run_bench
from dgconv.bench.runtimes import RUNTIMES, Runtime, Source, record, register_runtime
from dgconv.bench.settle import settle_
from dgconv.cli import main
from dgconv.errors import UserError
from dgconv.ops import native

FORMS = [
    ("dense", "torch"), ("dense", "ncnn"), ("dense", "ONNX Runtime"), ("dense", "OpenVINO"), ("dense", "prepared"),
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


def nothing():
    raise AssertionError("not called")


def test_ratios_and_quartiles_are_those_of_the_times():
    nchw, nhwc = Form("dense", "torch", nothing, "NCHW"), Form("dense", "torch", nothing, "NHWC")
    gone, ours = Form("dense", "OpenVINO", nothing), Form("dense", "prepared", nothing)
    other = Form("dgc", "prepared", nothing)
    seconds = {nchw: [4.0, 5.0, 9.0], nhwc: [3.0, 8.0, 2.0], ours: [2.0, 2.0, 2.0], other: [1.0, 1.5, 2.0]}
    gaps = dict.fromkeys(seconds, 1e-6)
    rows, rivals = rows_of([nchw, nhwc, gone, ours, other], seconds, {gone: "not installed"}, gaps)
    assert [(row.kind, row.form, row.layout) for row in rows] == [
        ("dense", "torch", "NHWC"), ("dense", "OpenVINO", ""), ("dense", "prepared", ""), ("dgc", "prepared", ""),
    ]  # fmt: skip
    assert [row.median for row in rows] == [3.0, None, 2.0, 1.5]
    assert [row.speedup for row in rows] == [1.0, None, 1.5, 2.0], "over the fastest rival; we are none of our own"
    assert rivals == {"float32": "torch"}
    assert rows[0].quartiles == (2.5, 5.5)
    assert rows[1].missing == "not installed"


def test_ratios_are_within_one_precision():
    torch_form, runtime = Form("dense", "torch", nothing), Form("dense", "A", nothing)
    runtime8, slower8 = (Form("dense", name, nothing, precision="int8") for name in "AB")
    ours8 = Form("dgc", "prepared", nothing, precision="int8")
    seconds = {torch_form: [9.0], runtime: [8.0], runtime8: [4.0], slower8: [5.0], ours8: [2.0]}
    rows, rivals = rows_of(list(seconds), seconds, {}, dict.fromkeys(seconds, 0.0))
    assert rivals == {"float32": "A", "int8": "A"}
    assert [row.speedup for row in rows] == [8 / 9, 1.0, 1.0, 4 / 5, 2.0]
    assert [row.name for row in rows][-2:] == ["dense, B int8", "DGC, prepared int8"]
    rows, rivals = rows_of(list(seconds), {ours8: [2.0]}, dict.fromkeys(seconds, "gone"), {ours8: 0.0})
    assert (rivals, rows[-1].speedup) == ({}, None), "no rival, no ratio"


def test_long_names_fit_into_the_title_of_the_picture():
    from dgconv.bench.picture import NAME_LETTERS, _end_of

    assert _end_of("condensenet20_dgc") == "condensenet20_dgc"
    assert _end_of("a" * 50 + "/run") == "…" + "a" * (NAME_LETTERS - 5) + "/run"


@pytest.mark.slow
def test_command(run, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    threads_before = torch.get_num_threads()
    options = ["--repeats", "2", "--threads", "1", "2", "--batch-sizes", "1", "3"]
    files = ["--json", "--picture", str(tmp_path / "bench.svg")]
    main(["bench", str(run), *options, *files])
    captured = capsys.readouterr()
    assert torch.get_num_threads() == threads_before
    result = json.loads(captured.out)
    assert (result["pruning_rate"], result["input_size"]) == (0.5, [3, 12, 12])
    assert {"hardware", "cores", "torch", "date", "onnxruntime", "openvino", "ncnn", "pnnx"} <= result["machine"].keys()
    cases = [(measured["batch_size"], measured["threads"]) for measured in result["measurements"]]
    assert cases == [(1, 1), (1, 2), (3, 1), (3, 2)]
    for measured in result["measurements"]:
        assert [(row["kind"], row["form"]) for row in measured["rows"]] == FORMS
        assert measured["repeats"] == 2
        timed = [row for row in measured["rows"] if row["median"] is not None]
        for row in measured["rows"]:
            assert row["median"] or (row["form"] in ("OpenVINO", "ncnn") and "not installed" in row["missing"])
        assert ("convolution" in measured["split"]) == native.available()
        assert all(seconds >= 0 for seconds in measured["split"].values())
        rivals = {row["form"]: row["median"] for row in timed if row["kind"] == "dense" and row["form"] != "prepared"}
        best = min(rivals.values())
        assert measured["fastest_rival"] == {"float32": next(form for form in rivals if rivals[form] == best)}
        for row in timed:
            low, high = row["quartiles"]
            assert 0 < low <= row["median"] <= high
            assert row["speedup"] == pytest.approx(best / row["median"])
    assert "differs" not in captured.err
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("missing", ["onnxruntime", "openvino", "nncf", "ncnn", "pnnx"])
def test_a_runtime_that_is_not_installed_says_so(monkeypatch, missing):
    for package in {package for one in RUNTIMES for package in one.packages}:
        monkeypatch.setitem(sys.modules, package, None if package == missing else SimpleNamespace())
    runtimes = [one for one in RUNTIMES if missing in one.packages]
    assert runtimes
    for runtime in runtimes:
        with pytest.raises(UserError, match=rf'needs {missing}, which is not installed: pip install "dgconv\[bench\]"'):
            runtime.get_ready(None)


def test_what_writes_the_onnx_file_may_be_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setitem(sys.modules, "onnx", SimpleNamespace())
    source = Source(torch.nn.Identity(), (3, 8, 8), torch.zeros(1, 3, 8, 8), tmp_path)
    with pytest.raises(UserError, match=r'needs onnxscript, which is not installed: pip install "dgconv\[export\]"'):
        source.onnx_file()


def test_a_missing_runtime_is_named_in_the_table(run, monkeypatch):
    monkeypatch.setattr(bench_forms, "RUNTIMES", [one for one in RUNTIMES if one.name == "ncnn"])
    monkeypatch.setitem(sys.modules, "ncnn", None)
    bench = bench_of(run)
    row = next(row for row in bench.measurements[0].rows if row.form == "ncnn")
    assert (row.median, row.missing) == (None, 'this needs ncnn, which is not installed: pip install "dgconv[bench]"')
    assert f"Missing: dense, ncnn: {row.missing}." in " ".join(str(bench).split())


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


def own_runtime(monkeypatch, load, precision="float32", convert=lambda source: source.model):
    """A rival that is added, beside no others."""
    runtimes = []
    monkeypatch.setattr(record, "RUNTIMES", runtimes)
    monkeypatch.setattr(bench_forms, "RUNTIMES", runtimes)
    register_runtime(Runtime("Rival", precision, ("torch",), convert, load))


def test_a_rival_of_ones_own(run, monkeypatch, capfd):
    """One record is all it takes to be converted once, measured, checked and named."""
    folders = []

    def convert(source):
        print("of no interest")
        logging.warning("nor this")
        (source.folder / "file").write_text("kept until all is measured")
        folders.append(source.folder)
        return source

    def load(source, threads, images):
        assert (source.folder / "file").exists()
        return lambda: source.model(images).detach()

    own_runtime(monkeypatch, load, convert=convert)
    networks = find_networks(str(run))
    told = []
    settings = {"batch_sizes": (1, 2), "threads": (1,), "repeats": 1}
    size = networks.input_size
    bench = run_bench("run", networks.by_kind, size, **settings, tell=lambda *parts: told.append(parts))
    for measured in bench.measurements:
        row = next(row for row in measured.rows if row.form == "Rival")
        assert row.median
        assert row.difference < 1e-5
        assert measured.fastest_rival["float32"] in ("torch", "Rival")
    assert len(folders) == 1
    assert not folders[0].exists()
    assert "of no interest" not in capfd.readouterr().out
    assert ("getting ready: dense, Rival", 2, 12) in told
    assert told[-1] == ("done", 12, 12)


def test_a_rival_that_computes_something_else_is_told(run, monkeypatch):
    own_runtime(monkeypatch, lambda model, threads, images: lambda: 1.01 * model(images).detach())
    (told,) = bench_of(run).warnings
    assert told == "batch 1: dense, Rival differs from torch by 0.01 of the largest logit"
    form = Form("dense", "b", nothing)
    assert disagreements({form: nan}) == [
        "dense, b cannot be compared with torch: there are logits that are NaN or infinite"
    ]
    assert not disagreements({Form("dense", "b", nothing, precision="int8"): 0.1})


@pytest.mark.parametrize("fails", ["convert", "load", "run"])
def test_a_rival_that_fails_is_told(run, monkeypatch, fails):
    def fail(*_):
        raise ValueError("no such operation\nand pages more")

    load = fail if fails == "load" else lambda model, threads, images: fail
    own_runtime(monkeypatch, load, convert=fail if fails == "convert" else lambda source: None)
    row = next(row for row in bench_of(run).measurements[0].rows if row.form == "Rival")
    assert row.missing == "Rival does not take the network: ValueError: no such operation"


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
        (["condensenet20_dgc", "--picture", "no/where.png"], "make it first"),
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
