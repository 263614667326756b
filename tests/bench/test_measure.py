"""measure: the user's own network, beside the one it was made from. Times themselves are not judged."""

import copy
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from dgconv import convert_
from dgconv.bench import measure, timing, where_faster
from dgconv.bench.forms import Form
from dgconv.bench.run import _tied, disagreements
from dgconv.deploy.export.formats import traced
from dgconv.errors import UserError
from dgconv.layers import SaliencyGenerator
from dgconv.ops import native
from dgconv.train import set_progress


class Branching(nn.Module):
    """Returns several tensors; its code cannot be exported, which asks for values."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.stem(x)
        if x.abs().sum() > 0:
            x = self.conv(x).relu()
        return {"features": x, "means": x.mean((2, 3))}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PAUSE", 0.0)
    monkeypatch.setattr(timing, "GET_GOING", 0.0)


@pytest.fixture
def networks() -> tuple[nn.Module, nn.Module]:
    dense = Branching().eval()
    model = copy.deepcopy(dense)
    convert_(model)
    return model, dense


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's, about itself
def test_beside_the_dense_network(networks) -> None:
    pytest.importorskip("onnxscript")
    model, dense = networks
    threads_before = torch.get_num_threads()
    measured = measure(model, torch.randn(2, 3, 8, 8), dense=dense, threads=(1, 2), repeats=1)
    assert torch.get_num_threads() == threads_before
    assert (measured.model, measured.pruning_rate, measured.input_size) == ("Branching", 0.75, (3, 8, 8))
    assert [(part.batch_size, part.threads, part.repeats) for part in measured.measurements] == [(2, 1, 1), (2, 2, 1)]
    assert not any("differs" in warning for warning in measured.warnings)
    for part in measured.measurements:
        rows = {row.name: row for row in part.rows}
        timed = ["dense, torch", "dense, prepared", "model, torch", "model, prepared"]
        assert [name for name, row in rows.items() if row.median and row.form != "ncnn"] == timed
        assert rows["dense, ONNX Runtime"].missing.startswith("no ONNX file: ")
        fastest = min(row.median for row in rows.values() if row.median and row.form in ("torch", "ncnn"))
        assert [rows[name].speedup for name in timed] == [fastest / rows[name].median for name in timed]
    shown = str(measured)
    assert "Branching at 3x8x8, pruning rate 0.75, batch 2" in shown
    assert "Speed-up in float32 is over the fastest rival" in shown


def test_alone_and_without_dynamic_layers(networks, monkeypatch) -> None:
    """Ratios are to torch; and a warning tells why nothing is native."""
    monkeypatch.setattr(native, "_find", lambda: "the native kernels are not in use: they were taken away")
    measured = measure(networks[1], torch.randn(1, 3, 8, 8), threads=1, repeats=2)
    (part,) = measured.measurements
    assert [(row.name, row.speedup) for row in part.rows] == [
        ("model, torch", 1.0),
        ("model, prepared", part.rows[0].median / part.rows[1].median),
    ]
    shown = " ".join(str(measured).split())
    assert "Branching at 3x8x8, batch 1" in shown
    assert "Speed-up is over torch." in shown
    assert "'prepared' is run by torch, for the native kernels are not in use: they were taken away" in shown


def test_wrong_use(networks) -> None:
    model, dense = networks
    images = torch.randn(1, 3, 8, 8)
    with pytest.raises(UserError, match=r"images must be a float32 tensor .* got \[3, 8, 8\], torch.float32, cpu"):
        measure(model, images[0])
    with pytest.raises(UserError, match=r"call model.eval\(\) first"):
        measure(model, images, dense=dense.train())
    with pytest.raises(UserError, match="`threads` must be at least 1, got 0"):
        measure(model, images, threads=0)
    with pytest.raises(UserError, match="`repeats` must be at least 1, got 0"):
        measure(model, images, repeats=0)
    with pytest.raises(UserError, match="`threads` must be at least 1, got two"):
        measure(model, images, threads=("two",))
    with pytest.raises(UserError, match=r"images must be a float32 tensor .* got \[0, 3, 8, 8\]"):
        measure(model, images[:0])
    with pytest.raises(UserError, match=r"does not take images of 4 x 8 x 8: .*4 channels"):
        measure(model, torch.randn(1, 4, 8, 8))
    with pytest.raises(UserError, match="does not take images of 3 x 8 x 8"):
        measure(model, images, dense=nn.Conv2d(4, 4, 1).eval())


def test_the_rate_is_what_the_gates_do(networks) -> None:
    model, _ = networks
    set_progress(model, 0)
    measured = measure(model, torch.randn(1, 3, 8, 8), threads=1, repeats=1)
    assert measured.pruning_rate == 0, "whatever the target is"


def test_an_unrelated_network_is_refused(networks) -> None:
    other = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).eval()
    with pytest.raises(UserError, match="`dense` is to be the network that the model was made from"):
        measure(networks[0], torch.randn(1, 3, 8, 8), dense=other, threads=1, repeats=1)


def test_ties_are_called_ties(networks) -> None:
    """All saliencies of a network that was just converted are 1."""
    form, images = Form("model", "prepared", lambda: lambda threads, images: lambda: None), torch.randn(1, 3, 8, 8)
    (told,) = disagreements({form: 0.5}, partial(_tied, {"model": networks[0]}, images))
    assert "differs from torch by 0.5 of the largest logit. These are ties: in conv, channels" in told
    for layer in networks[0].modules():
        if isinstance(layer, SaliencyGenerator):
            nn.init.uniform_(layer.bias, 0.5, 1.5)
    (told,) = disagreements({form: 0.5}, partial(_tied, {"model": networks[0]}, images))
    assert told.endswith("of the largest logit")


def test_what_torch_cannot_follow_is_told_in_a_line(networks, capfd) -> None:
    with pytest.raises(
        UserError, match=r"torch.export cannot follow the network: .*, in forward \(.*test_measure.py:\d+\)"
    ):
        traced(networks[1], (3, 8, 8))
    assert "def forward" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_where_a_dynamic_layer_is_faster(networks) -> None:
    filter_fn = where_faster(networks[1], torch.randn(1, 3, 8, 8), repeats=1)
    assert filter_fn("stem", networks[1].stem) == "first conv"
    answer = filter_fn("conv", networks[1].conv)
    assert answer is True or answer.startswith("slower: ")


@pytest.mark.slow
def test_images_that_require_a_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1)).eval()
    measured = measure(model, torch.randn(1, 3, 8, 8, requires_grad=True), dense=model, threads=1, repeats=1)
    assert not measured.warnings


THEN_CTRL_C = """
import signal, torch
from torch import nn
from dgconv.bench import measure

model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
measure(model, torch.randn(1, 3, 8, 8), dense=model, threads=(1, 2), repeats=1, precision=("float32", "int8"))
signal.signal(signal.SIGINT, lambda *_: print("handled"))
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.slow
def test_a_signal_afterwards_finds_its_stack():
    """With two networks of OpenVINO's at a time, where both precisions are installed."""
    pytest.importorskip("openvino")
    done = subprocess.run([sys.executable, "-c", THEN_CTRL_C], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr
