"""Exported files compute what the network computes, for any batch, ties included."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from dgconv import convert_, create_model, dynamic_layers, load_model, save_model
from dgconv.bench.settle import settle_
from dgconv.cli import main
from dgconv.deploy import export_model, load, prepare
from dgconv.deploy.export.formats import export_run, write_aoti, write_onnx, write_torch
from dgconv.deploy.export.outputs import difference, names_of
from dgconv.errors import UserError
from dgconv.layers import HeadGate
from dgconv.models.mobilenetv2 import STAGES
from dgconv.pruning import cut, pruning_of

NETWORKS = {
    "condensenet20_dgc": ({"stages": (1, 1), "growth": (8, 16)}, 16),
    "condensenet20_dgcg": ({"stages": (1, 1), "growth": (8, 16)}, 16),
    "condensenet20_sgc": ({"stages": (1, 1), "growth": (8, 16)}, 16),
    "mobilenetv2_dgc": ({"width": 0.25, "downsample": (2,)}, 16),
    "resnet18_dgc": ({"width": 16, "stages": (1, 1)}, 32),
    "condensenet20_dgc, one layer": ({"stages": (1,), "growth": (8,)}, 16),
    "resnet18_dgc, one block": ({"width": 16, "stages": (1,)}, 16),
}

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")


@pytest.fixture
def network(request, monkeypatch):
    """A settled network, the global gates of which prune."""
    monkeypatch.setattr("dgconv.models.mobilenetv2.STAGES", STAGES[:2])  # three blocks, one of each kind
    options, side = NETWORKS[request.param]
    model = create_model(request.param.partition(",")[0], num_classes=10, **options)
    settle_(model, (3, side, side), batches=4)
    for _, layer in dynamic_layers(model):
        if not isinstance(layer.gate, HeadGate):
            layer.gate.threshold.fill_(1.0)
    return model, (3, side, side)


def session_of(file):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session, lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


@torch.no_grad()
def assert_computes(model, exported, input_size, tolerance=1e-5):
    for batch in (1, 7):
        x = torch.randn(batch, *input_size)
        expected = model(x)
        assert (exported(x) - expected).abs().max() <= tolerance * expected.abs().max(), batch


@pytest.mark.slow
@pytest.mark.parametrize("network", [name for name in NETWORKS if "," not in name], indirect=True)
def test_onnx(network, tmp_path):
    onnx = pytest.importorskip("onnx")
    model, size = network
    report = export_model(model, tmp_path / "net.onnx", "onnx", size)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    assert report.bytes == (tmp_path / "net.onnx").stat().st_size
    assert report.difference < 1e-3
    is_dynamic = any(True for _ in dynamic_layers(model))
    assert ("saves no time" in report.note) == is_dynamic
    session, exported = session_of(tmp_path / "net.onnx")
    assert session.get_inputs()[0].shape == ["batch", *size]
    assert session.get_outputs()[0].shape == ["batch", 10]
    assert_computes(model, exported, size)
    nodes = onnx.load(tmp_path / "net.onnx").graph.node
    assert {node.domain for node in nodes} == {""}, "standard operations only"


@pytest.mark.slow
@pytest.mark.parametrize("network", ["condensenet20_dgc, one layer", "resnet18_dgc, one block"], indirect=True)
def test_onnx_with_ties_everywhere(network, tmp_path):
    """All saliencies are 1, so the channels of lowest index are kept, and which are kept shows in the result."""
    model, size = network
    for _, layer in dynamic_layers(model):
        layer.generator.reset_to_ones()
    settle_(model, size)
    export_model(model, tmp_path / "net.onnx", "onnx", size)
    assert_computes(model, session_of(tmp_path / "net.onnx")[1], size)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's, about itself
@pytest.mark.parametrize("tie_rule", ["lowest_index", "drop"])
def test_the_gate_in_onnx_chooses_exactly_the_same(tmp_path, tie_rule):
    gate = HeadGate(24, 0.5, tie_rule=tie_rule)
    exported = write_onnx(gate, tmp_path / "gate.onnx", (4, 24))
    few_values = torch.randint(-2, 3, (50, 4, 24)).float()
    special = few_values.clone()
    special[torch.rand(special.shape) < 0.2] = float("nan")
    special[torch.rand(special.shape) < 0.1] = float("inf")
    for scores in (torch.rand(7, 4, 24), few_values, torch.zeros(1, 4, 24), torch.full((1, 4, 24), torch.nan), special):
        (result,), expected = exported(scores), gate(scores)
        assert torch.equal(result.nan_to_num(5), expected.nan_to_num(5))


@pytest.mark.slow
@pytest.mark.parametrize("network", ["condensenet20_dgc", "condensenet20_dgcg"], indirect=True)
def test_torch_export(network, tmp_path):
    model, size = network
    model.train()
    report = export_model(model, tmp_path / "net.pt2", "torch", size)
    assert model.training, "left as it was"
    model.eval()
    assert report.difference < 1e-6
    assert "import dgconv" in report.note
    loaded = torch.export.load(tmp_path / "net.pt2")
    assert "dgconv.dynamic_group_conv2d" in str(loaded.graph)
    assert_computes(model, loaded.module(), size)


@pytest.mark.slow
def test_of_pruned_filters_what_is_left(tmp_path, capsys):
    model = create_model("resnet20", num_classes=10, width=8, prune="l1", prune_rate=0.5).eval()
    pruning_of(model).prune(model)
    save_model(model, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "net.pt2", "torch")
    loaded = torch.export.load(tmp_path / "net.pt2")
    assert sum(map(torch.numel, loaded.parameters())) == sum(p.numel() for p in cut(model).parameters())
    assert_computes(model, loaded.module(), (3, 32, 32))
    save_model(cut(model), tmp_path / "cut")
    for folder in ("run", "cut"):
        with pytest.raises(SystemExit, match="2"):
            main(["bench", str(tmp_path / folder)])
        assert "pruned filters" in capsys.readouterr().err


class Branches(nn.Module):
    """Returns a dict with a list in it; one name is that of a value inside, one tensor has no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x):
        stem = self.stem(x)
        out = self.conv(stem)
        return {"conv2d": out.mean((2, 3)), "aux": [stem, out.mean()]}


@pytest.fixture
def branches():
    model = Branches().eval()
    convert_(model)
    return model


@pytest.mark.slow
def test_several_outputs_in_onnx(branches, tmp_path):
    assert export_model(branches, tmp_path / "net.onnx", "onnx", (3, 8, 8)).difference < 1e-5
    session, _ = session_of(tmp_path / "net.onnx")
    outputs = {output.name: output.shape for output in session.get_outputs()}
    assert outputs == {"conv2d": ["batch", 8], "aux.0": ["batch", 8, 6, 6], "aux.1": []}
    assert [names_of(output) for output in (torch.ones(1), (torch.ones(1), [torch.ones(1)]))] == [
        ["logits"],
        ["output_0", "output_1.0"],
    ]


def test_several_outputs_in_torch_export(branches, tmp_path):
    assert export_model(branches, tmp_path / "net.pt2", "torch", (3, 8, 8)).difference == 0
    loaded, x = torch.export.load(tmp_path / "net.pt2").module(), torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(loaded(x), branches(x))


def test_a_difference_in_any_output_shows():
    zero, one, nan = torch.zeros(2), torch.ones(2), torch.full((2,), torch.nan)
    assert difference({"a": zero, "b": 2 * one}, [zero, 2 * one]) == 0
    assert difference({"a": zero, "b": 1.5 * one}, [zero, 2 * one]) == 0.25
    assert torch.tensor(difference([one, nan, one], [one, one, one])).isnan()


def test_half_precision(branches, tmp_path):
    assert export_model(branches.half(), tmp_path / "net.pt2", "torch", (3, 8, 8)).difference == 0
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    assert loaded(torch.randn(2, 3, 8, 8).half())["conv2d"].dtype == torch.float16


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_torch_export_onto_a_full_disk(branches):
    with pytest.raises(OSError, match="No space left"):
        write_torch(branches, Path("/dev/full"), (3, 8, 8))


@needs_compiler
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_aoti_onto_a_full_disk(branches, monkeypatch):
    """Torch would end the process if it were given the file."""
    monkeypatch.setattr(
        "torch._inductor.aoti_compile_and_package", lambda program, package_path: package_path.write(b"compiled")
    )
    with pytest.raises(OSError, match="No space left"):
        write_aoti(branches, Path("/dev/full"), (3, 8, 8))


@needs_compiler
def test_no_space_to_compile(branches, tmp_path, monkeypatch):
    error = RuntimeError("OSError: [Errno 28] No space left on device")

    def fail(program, package_path):
        raise error

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", fail)
    with pytest.raises(UserError, match=f"no space left where torch compiles, in {tempfile.gettempdir()} or"):
        export_model(branches, tmp_path / "net.pt2", "aoti", (3, 8, 8))
    error.args = ("any other trouble",)
    with pytest.raises(RuntimeError, match="any other trouble"):
        export_model(branches, tmp_path / "net.pt2", "aoti", (3, 8, 8))
    assert not list(tmp_path.iterdir())


def test_models_that_cannot_be_exported(branches, tmp_path):
    with pytest.raises(UserError, match="export the model it was prepared from"):
        export_model(prepare(branches), tmp_path / "net.pt2", "torch", (3, 8, 8))
    with pytest.raises(UserError, match=r"weight is on meta; call model.cpu\(\) first"):
        export_model(nn.Conv2d(3, 3, 1, device="meta"), tmp_path / "net.pt2", "torch", (3, 8, 8))
    with pytest.raises(UserError, match=r"takes an nn.Module, got a str"):
        export_model("resnet20", tmp_path / "net.pt2", "torch", (3, 8, 8))
    with pytest.raises(UserError, match=r"does not take images of 3 x 8 x 8: .*missing 1 required positional argument"):
        export_model(nn.Bilinear(8, 8, 8), tmp_path / "net.pt2", "torch", (3, 8, 8))
    with pytest.raises(UserError, match=r"input_size must be \(channels, height, width\).* got 224"):
        export_model(branches, tmp_path / "net.pt2", "torch", 224)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_what_wraps_the_model_is_taken_off(wrap, branches, tmp_path):
    assert export_model(wrap(branches), tmp_path / "net.pt2", "torch", (3, 8, 8)).difference == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_precisions_that_onnx_runtime_has_not(dtype, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    with pytest.raises(UserError, match=rf"no {dtype} convolutions on the CPU; call model.float\(\) first"):
        export_model(nn.Conv2d(3, 3, 1, dtype=dtype), tmp_path / "net.onnx", "onnx", (3, 8, 8))


class BranchesOnValues(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "format", "message"),
    [
        (BranchesOnValues(), "torch", "torch.export cannot follow the network: Could not guard on data-dependent"),
        (nn.AdaptiveMaxPool2d(3), "onnx", "torch cannot write the network as ONNX: No .*adaptive_max_pool2d"),
    ],
)
def test_what_torch_refuses_is_told_in_a_line(model, format, message, tmp_path):
    if format == "onnx":
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    file = tmp_path / ("net.onnx" if format == "onnx" else "net.pt2")
    with pytest.raises(UserError, match=message) as told:
        export_model(model, file, format, (3, 8, 8))
    assert len(str(told.value).splitlines()) == 1
    assert told.value.__cause__ is not None
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("_inductor_asks_no_compiler")
@pytest.mark.parametrize("network", ["condensenet20_dgc, one layer"], indirect=True)
def test_aoti(network, tmp_path):
    model, size = network
    report = export_model(model, tmp_path / "net.pt2", "aoti", size)
    assert report.difference < 1e-4
    torch.save((x := torch.randn(5, *size), model(x).detach()), tmp_path / "expected.pt")
    program = (
        "import torch, dgconv; net = torch._inductor.aoti_load_package('net.pt2'); "
        "x, expected = torch.load('expected.pt'); torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=120)


@pytest.fixture
def run(tmp_path):
    model = create_model("condensenet20_dgc", stages=(1,), growth=(4,))
    settle_(model, (3, 8, 8))
    save_model(model, tmp_path / "run", input_size=(3, 8, 8))
    return tmp_path / "run"


@pytest.mark.slow
def test_command(run, tmp_path, capsys):
    main(["export", str(run), "--out", str(tmp_path / "net.onnx")])
    told = " ".join(capsys.readouterr().out.split())
    assert "images 3x8x8, batches of any size" in told
    assert "gives the right result and saves no time" in told
    main(["export", str(run), "--format", "torch", "--out", str(tmp_path / "net.pt2"), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "torch"
    assert report["input_size"] == [3, 8, 8]


def test_prepared_is_a_folder(run, tmp_path, capsys):
    main(["export", str(run), "--format", "prepared", "--out", str(tmp_path / "fast"), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["precision"]) == ("prepared", "float32")
    assert report["bytes"] == sum(file.stat().st_size for file in (tmp_path / "fast").iterdir())
    assert report["difference"] < 1e-4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fast", "run"]
    assert_computes(load_model(run), load(tmp_path / "fast"), (3, 8, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/where", "--out", "net.onnx"], "no/where is not a run folder"),
        (["resnet18_dgc", "--out", "net.onnx"], "there is no run folder resnet18_dgc, and no published network"),
        (["run", "--out", "net.pt2"], "a file of format 'onnx' must end in .onnx"),
        (["run", "--format", "aoti", "--out", "net.so"], "a file of format 'aoti' must end in .pt2"),
        (["run", "--out", "taken.onnx"], "taken.onnx exists; name another file"),
        (["run", "--out", "no/where/net.onnx"], "is not a folder; make it first"),
        (["run", "--format", "tflite", "--out", "net.tflite"], "tflite"),
        (
            ["run", "--precision", "int8", "--format", "torch", "--out", "net.pt2"],
            "written in the format 'prepared' only",
        ),
        (
            ["run", "--precision", "int8", "--out", "fast"],
            "was not trained here, so neither its recipe nor its data set",
        ),
        (["run", "--data-dir", "data", "--out", "net.onnx"], "leave --data-dir out, or set --precision"),
    ],
)
def test_wrong_use(run, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.onnx").touch()
    with pytest.raises(SystemExit, match="2"):
        main(["export", *arguments])
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).replace("│", " ").split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "taken.onnx"]


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"no 'no-such-compiler'\. Install g\+\+"):
        export_model(create_model("condensenet20_dgc"), tmp_path / "net.pt2", "aoti", (3, 32, 32))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["onnxruntime", "onnxscript"])
def test_without_the_extra(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=rf'needs {missing}, which is not installed: pip install "dgconv\[export\]"'):
        export_model(create_model("condensenet20_dgc"), tmp_path / "net.onnx", "onnx", (3, 32, 32))
    assert not list(tmp_path.iterdir())
