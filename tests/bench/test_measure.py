"""measure: the user's own network, beside the one it was made from. Times themselves are not judged."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from dgconv import convert_
from dgconv.bench import measure, timing
from dgconv.errors import UserError
from dgconv.ops import native


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
measure(model, torch.randn(1, 3, 8, 8), dense=model, threads=(1, 2), repeats=1)
signal.signal(signal.SIGINT, lambda *_: print("handled"))
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.slow
def test_a_signal_afterwards_finds_its_stack():
    pytest.importorskip("openvino")
    done = subprocess.run([sys.executable, "-c", THEN_CTRL_C], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr
