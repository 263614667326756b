"""Prepared models on disk."""

import errno
import json
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dgconv import convert_, create_model, deploy
from dgconv.bench.settle import settle_
from dgconv.deploy import storage
from dgconv.deploy.graph import Conv
from dgconv.deploy.storage import GRAPH, WEIGHTS, _digest
from dgconv.errors import UserError


def prepared(name: str) -> tuple[deploy.PreparedModel, Tensor]:
    model = create_model(name, num_classes=7)
    settle_(model, (3, 32, 32))
    if name.endswith("_dgcg"):
        for module in model.modules():
            if hasattr(module, "threshold"):
                module.threshold.fill_(0.1)  # not a short number in binary
    return deploy.prepare(model), torch.randn(2, 3, 32, 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20_dgc", "resnet20_sgc", "condensenet20_dgcg", "mobilenetv2_dgc"])
def test_round_trip_is_exact(tmp_path: Path, name: str) -> None:
    model, x = prepared(name)
    deploy.save(model, tmp_path / "new" / "folder")
    loaded = deploy.load(str(tmp_path / "new" / "folder"))
    assert torch.equal(loaded(x), model(x))
    assert loaded.report() == model.report()
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [GRAPH, WEIGHTS]


def test_between_engines(tmp_path: Path, engine: str) -> None:
    model, x = prepared("resnet20_dgc")
    deploy.save(model, tmp_path)
    loaded = deploy.load(tmp_path)
    assert torch.equal(loaded(x), model(x))
    with pytest.raises(UserError, match="holds a model already"):
        deploy.save(loaded, tmp_path)
    deploy.save(loaded, tmp_path, overwrite=True)
    assert torch.equal(deploy.load(tmp_path)(x), model(x))


class Gated(nn.Module):
    """Functions that torch runs: a slice, a chunk, a tuple, a keyword, a constant tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.silu = nn.Conv2d(3, 8, 3), nn.SiLU(inplace=True)
        self.scale = nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.silu(self.conv(x)).chunk(2, dim=1)
        rows = nn.functional.adaptive_avg_pool2d(first * self.scale + second.sigmoid(), (2, 2)).flatten(1)
        return nn.functional.softmax(rows[:, 1:], dim=-1)


def test_named_functions_are_stored(tmp_path: Path) -> None:
    model, x = Gated().eval(), torch.rand(2, 3, 9, 9)
    original = deploy.prepare(model)
    deploy.save(original, tmp_path)
    loaded = deploy.load(tmp_path)
    assert torch.equal(loaded(x), original(x))
    torch.testing.assert_close(loaded(x), model(x))


LAYERS = {
    "GroupNorm": nn.GroupNorm(2, 8),
    "LayerNorm": nn.LayerNorm(9),
    "PReLU": nn.PReLU(8),
    "Linear": nn.Linear(9, 5),
    "ConvTranspose2d": nn.ConvTranspose2d(8, 6, 3, 2, 1, 1, groups=2, dilation=2),
    "Upsample": nn.Upsample(scale_factor=2, mode="bilinear"),
    "PixelShuffle": nn.PixelShuffle(2),
    "AdaptiveMaxPool2d": nn.AdaptiveMaxPool2d(2),
    "MaxPool2d": nn.MaxPool2d(2, ceil_mode=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_torch_runs_are_stored(tmp_path: Path, name: str) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 1), LAYERS[name]).eval(), torch.rand(2, 3, 9, 9)
    original = deploy.prepare(model)
    deploy.save(original, tmp_path)
    assert torch.equal(deploy.load(tmp_path)(x), original(x))
    assert torch.equal(pickle.loads(pickle.dumps(original))(x), original(x))
    torch.testing.assert_close(original(x), model(x))


class ToSize(nn.Module):
    """Gives a layer more than its function takes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 8, 3, 2), nn.ConvTranspose2d(8, 4, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.conv(x), output_size=(10, 10))


def test_a_layer_that_is_given_more_stays_a_layer() -> None:
    model, x = ToSize().eval(), torch.rand(1, 3, 10, 10)
    torch.testing.assert_close(deploy.prepare(model)(x), model(x))


class Loop(nn.Module):
    """Calls a convolution twice, and reads three views of one tensor, two of which begin at the same place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.shifts = nn.Parameter(torch.rand(9, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = self.again(x).relu() + x
        return (torch.sigmoid(x + self.shifts[1:]) + self.shifts[:8]) * self.shifts[:1]


def test_a_layer_called_twice_is_stored_once(tmp_path: Path, engine: str) -> None:
    model, x = Loop().eval(), torch.rand(2, 3, 9, 9)
    convert_(model)
    original = deploy.prepare(model)
    deploy.save(original, tmp_path)
    loaded = deploy.load(tmp_path)
    assert torch.equal(loaded(x), original(x))
    first, second = (step for step in loaded.graph.steps if isinstance(step, Conv) and step.gate)
    assert first.weight is second.weight
    assert first.gate.weight1 is second.gate.weight1


def test_python_code_is_not_stored(tmp_path: Path) -> None:
    model = deploy.prepare(nn.Sequential(nn.Conv2d(3, 4, 1), nn.CELU(), nn.SELU()).eval())
    with pytest.raises(UserError, match=r"2 steps are left to Python code.*: 1 \(CELU\), 2 \(SELU\)\. .*original"):
        deploy.save(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    with pytest.raises(UserError, match=r"^1 step is left"):
        deploy.save(deploy.prepare(nn.Sequential(nn.Conv2d(3, 4, 1), nn.CELU()).eval()), tmp_path)
    with pytest.raises(UserError, match="got a Conv2d"):
        deploy.save(nn.Conv2d(3, 3, 1), tmp_path)


class Pair(NamedTuple):
    fine: Tensor
    coarse: Tensor


class Several(nn.Module):
    """Two results and a constant, put together by ``pack``."""

    def __init__(self, pack: Callable[..., Any]) -> None:
        super().__init__()
        self.conv, self.pack = nn.Conv2d(3, 4, 3), pack
        self.register_buffer("anchors", torch.rand(2, 2))

    def forward(self, x: Tensor) -> Any:
        fine = self.conv(x)
        return self.pack(fine, torch.sigmoid(fine), self.anchors)


@pytest.mark.parametrize(
    "pack",
    [
        lambda fine, coarse, anchors: (fine, coarse),
        lambda fine, coarse, anchors: [coarse],
        lambda fine, coarse, anchors: {"type": fine, "levels": [(coarse, None), {"anchors": anchors}], "stride": 4},
        lambda fine, coarse, anchors: OrderedDict(out=fine, aux=coarse),
    ],
    ids=["tuple", "list", "dict", "ordered dict"],
)
def test_several_results_are_stored(tmp_path: Path, engine: str, pack: Callable[..., Any]) -> None:
    model, x = Several(pack).eval(), torch.rand(2, 3, 9, 9)
    original = deploy.prepare(model)
    deploy.save(original, tmp_path)
    loaded = deploy.load(tmp_path)
    assert loaded.report() == original.report()
    actual, structure = pytree.tree_flatten(loaded(x))
    expected, expected_structure = pytree.tree_flatten(original(x))
    assert structure == expected_structure == pytree.tree_structure(model(x))
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (lambda fine, coarse, anchors: [Pair(fine, coarse)], "returns a Pair, .* holds tuples, lists and dicts"),
        (lambda fine, coarse, anchors: {"levels": {8: fine}}, "a dict with the key 8; .* strings for keys"),
    ],
    ids=["named tuple", "numbers"],
)
def test_other_results_are_not_stored(tmp_path: Path, pack: Callable[..., Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        deploy.save(deploy.prepare(Several(pack).eval()), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def saved(folder: Path) -> Path:
    deploy.save(deploy.prepare(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Mish()).eval()), folder)
    return folder


def test_damaged_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no prepared model: it has no graph.json"):
        deploy.load(tmp_path)

    folder = saved(tmp_path / "no weights")
    (folder / WEIGHTS).unlink()
    with pytest.raises(UserError, match=r"weights.safetensors is missing"):
        deploy.load(folder)

    folder = saved(tmp_path / "cut")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])
    with pytest.raises(UserError, match="damaged or not a safetensors file"):
        deploy.load(folder)

    folder, other = saved(tmp_path / "one"), saved(tmp_path / "other")
    (other / GRAPH).write_text((folder / GRAPH).read_text().replace("0.1.0", "0.1.1"))
    with pytest.raises(UserError, match=r"does not belong to the graph.json beside it"):
        deploy.load(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"Conv"', '"Convolution"'),
        lambda text: text.replace('"functional.mish"', '"os.system"'),
        lambda text: text.replace('"stride"', '"strides"'),
        lambda text: text.replace('"format": 2', '"format": 3'),
        lambda text: text[:-20],
        lambda text: "[]",
    ],
    ids=["kind", "function", "field", "format", "cut", "list"],
)
def test_a_graph_that_says_something_else(tmp_path: Path, change, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path)
    text = (folder / GRAPH).read_text()
    assert json.loads(text)["format"] == 2
    assert change(text) != text
    (folder / GRAPH).write_text(change(text))
    digest = _digest(text.encode())
    monkeypatch.setattr("dgconv.deploy.storage._digest", lambda content: digest)
    with pytest.raises(UserError, match=r"graph.json (is damaged|has format 3)"):
        deploy.load(folder)


def test_a_full_disk_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(storage, "write_atomically", full)
    with pytest.raises(UserError, match=r"cannot be written: No space left on device. Make room for [\d,]+ bytes"):
        deploy.save(prepared("resnet20_dgc")[0], tmp_path / "new")
