"""The README's way with one's own network, from convert_ to the exported file, works as it is written."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dgconv import deploy
from dgconv.bench import run, timing
from dgconv.bench.runtimes import record

README = Path(__file__).parents[2] / "README.md"


def code_of(section: str) -> list[str]:
    (text,) = re.findall(rf"^## {section}\n(.*?)^## ", README.read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def small(weights: str | None = None) -> nn.Module:
    """In the place of ResNet-18."""
    stem = [nn.Conv2d(3, 8, 3, stride=32), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*stem, nn.Conv2d(8, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's, about itself
def test_own_network(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=SimpleNamespace(resnet18=small)))
    for name, value in {"FEWEST": 1, "MOST": 1, "PAUSE": 0, "GET_GOING": 0}.items():
        monkeypatch.setattr(timing, name, value)  # measured, but in no time
    monkeypatch.setattr(run, "usable_cores", lambda: 1)
    monkeypatch.setattr(record, "save_onnx", None)  # once is enough, below
    images = torch.randn(2, 3, 224, 224)
    names = {"images": images, "batches": [(images, torch.tensor([3, 7]))] * 4}

    convert, tune, load = code_of("Convert your own network")
    exec(convert, names)
    assert "replaced 1 of 2 convolutions" in capsys.readouterr().out
    exec(tune, names)
    tuned = names["model"].eval()(images)
    exec(load, names)
    assert torch.equal(names["model"].eval()(images), tuned)

    (make_fast,) = code_of("Make it fast")
    exec(make_fast, names)
    shown = capsys.readouterr().out
    assert all(row in shown for row in ("dense, ONNX Runtime", "dense, prepared", "model, torch", "model, prepared"))
    torch.testing.assert_close(names["logits"], tuned, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(deploy.load("fast")(images), names["logits"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fast", "model.pt", "net.onnx", "net.pt2"]
