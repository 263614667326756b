"""The sparse convolutions of inference on a GPU against the reference, in Triton's interpreter if there is none."""

import os

import pytest
import torch
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")

from dgconv.layers import HeadGate, SaliencyGenerator  # noqa: E402
from dgconv.ops.reference import dynamic_group_conv2d_reference  # noqa: E402
from dgconv.ops.triton import dynamic_conv, planes, selection  # noqa: E402
from dgconv.ops.triton.selection import GateTile, Selection, gate_tiles, select  # noqa: E402
from dgconv.ops.triton.tiles import Geometry, Norm, Tile  # noqa: E402

SHAPES = [  # batch, channels, outputs, heads, keep, height, width, geometry
    (1, 16, 16, 1, 16, 5, 5, Geometry(3, 1, 1)),  # all kept
    (2, 24, 40, 4, 1, 6, 5, Geometry(3, 1, 1)),  # one kept, ten outputs a head
    (7, 9, 6, 3, 3, 7, 7, Geometry(1, 2, 0)),
    (1, 33, 64, 2, 17, 9, 8, Geometry(3, 2, 1)),
    (2, 64, 80, 4, 16, 4, 7, Geometry(1, 1, 0)),
    (1, 5, 4, 2, 4, 3, 3, Geometry(3, 1, 0)),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}  # the interpreter rounds towards 0


def channels_last(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype).contiguous(memory_format=torch.channels_last)


def close(actual, expected, dtype):
    return (actual.float() - expected.float()).abs().max() <= TOLERANCE[dtype] * expected.abs().max().clamp(min=1)


def transposed(generator):
    weights = generator.weight1, generator.weight2.mT.contiguous(), generator.bias
    return [weight.detach().contiguous() for weight in weights]


def dense(index, gates, channels):
    return gates.new_zeros(*gates.shape[:2], channels).scatter_add_(2, index.long(), gates)


@pytest.mark.parametrize("most", [512, selection.MOST_WEIGHTS])  # several rounds of hidden units, or one
@pytest.mark.parametrize(
    ("batch", "channels", "heads", "keep"),
    [(3, 16, 1, 16), (3, 40, 3, 1), (3, 130, 2, 33), (7, 300, 1, 300), (270, 9, 1, 4)],
)
@pytest.mark.parametrize("images", [1, 4])  # of a program
def test_what_is_kept(batch, channels, heads, keep, images, most, monkeypatch):
    monkeypatch.setattr(selection, "MOST_WEIGHTS", most)
    generator = SaliencyGenerator(channels, heads).to(DEVICE)
    gate = HeadGate(channels, 0, device=DEVICE)
    gate.keep.fill_(keep)
    x = channels_last(batch, channels, 5, 7)
    x[1] = 0  # all saliencies are 1: ties
    places = torch.randperm(channels, device=DEVICE).int()
    sums = planes.sums(x[:, places.argsort()].contiguous(memory_format=torch.channels_last))
    weight1, *others = transposed(generator)
    weight1 = weight1[..., places.argsort()].contiguous()
    selected = select(sums, 35, weight1, *others, keep, places, arrivals=5, tile=GateTile(images, 4))
    index, gates = selected.index, selected.gates
    assert index.shape == gates.shape == (batch, heads, -(-keep // 16) * 16)
    expected = gate(generator(x)).detach()[..., places.argsort()]
    assert close(dense(index, gates, channels), expected, torch.float32)
    assert close(selected.every, expected, torch.float32)
    assert selected.arrivals.tolist() == [[0] * 5] * batch
    assert (gates[..., keep:] == 0).all()


def test_nan_ranks_last():
    generator = SaliencyGenerator(16, 1).to(DEVICE)
    with torch.no_grad():
        generator.bias[0, :8] = torch.nan
    places = torch.arange(16, device=DEVICE, dtype=torch.int32)
    sums = torch.rand(1, 2, 16, device=DEVICE)
    index = select(sums, 4, *transposed(generator), 8, places).index
    assert index[0, 0, :8].tolist() == list(range(8, 16))
    wide = SaliencyGenerator(140, 1).to(DEVICE)  # where ranks are not counted
    with torch.no_grad():
        wide.bias[0, :100] = torch.nan
    places, sums = torch.arange(140, device=DEVICE, dtype=torch.int32), torch.zeros(3, 2, 140, device=DEVICE)
    index = select(sums, 4, *transposed(wide), 43, places, tile=GateTile(2, 4)).index
    assert index[:, 0, :43].tolist() == [[0, 1, 2, *range(100, 140)]] * 3


def test_tiles_of_gates():
    for shape in ((1, 4, 512, 32), (256, 4, 64, 8), (256, 4, 128, 8), (256, 4, 512, 32), (300, 1, 3, 1)):
        tiles = gate_tiles(*shape)
        assert 1 <= len({*tiles}) == len(tiles) <= 8
        assert all(tile.warps >= 1 for tile in tiles)
    assert {tile.images for tile in gate_tiles(1, 4, 2048, 128)} == {1}


@pytest.mark.parametrize(("dtype", "split"), [*((dtype, 1) for dtype in TOLERANCE), (torch.float32, 3)])
@pytest.mark.parametrize("way", ["packed", "gathered", "folded", "gated"])
@pytest.mark.parametrize(("batch", "channels", "outputs", "heads", "keep", "height", "width", "geometry"), SHAPES)
def test_convolution(batch, channels, outputs, heads, keep, height, width, geometry, dtype, way, split):
    x = channels_last(batch, channels, height, width, dtype=dtype)
    weight = torch.randn(outputs, channels, geometry.kernel, geometry.kernel, device=DEVICE) / channels**0.5
    kept = torch.rand(batch, heads, channels, device=DEVICE).argsort(-1)[..., :keep].sort(-1).values
    saliency = torch.rand(kept.shape, device=DEVICE) + 0.5
    gates = F.pad(saliency, (0, -keep % 16))
    index = F.pad(kept, (0, -keep % 16)).int()
    window = geometry.stride, geometry.padding
    expected = dynamic_group_conv2d_reference(
        x.float(), weight.to(dtype).float(), dense(index, gates, channels), *window
    )
    tile, each = Tile(16, 16, 16, way, split=split), outputs // heads
    places = torch.arange(channels, device=DEVICE)
    weight = weight.to(dtype)
    pixels = expected[0, 0].numel()

    def arguments(by_head):
        arrivals = dynamic_conv.arrivals_for(tile, pixels, heads, each)
        zeros = torch.zeros(batch, arrivals, dtype=torch.int32, device=DEVICE)
        selected = Selection(index, gates, dense(index, gates, channels), zeros)
        return x, selected, dynamic_conv.lay_out(weight, heads, places, by_head)

    bias, residual = torch.randn(outputs, device=DEVICE), channels_last(*expected.shape, dtype=dtype)
    plain, none = dynamic_conv.convolve(*arguments(False), None, keep, each, geometry, tile)
    assert none is None
    assert plain.is_contiguous(memory_format=torch.channels_last)
    assert close(plain, expected, dtype)

    by_head = torch.arange(outputs, device=DEVICE).view(-1, heads).T.flatten()
    expected = F.relu6(expected + bias[:, None, None] + residual)
    moved = residual[:, by_head].contiguous(memory_format=torch.channels_last)
    out, sums = dynamic_conv.convolve(
        *arguments(True), bias[by_head], keep, each, geometry, tile, residual=moved, activation="relu6",
        by_head=True, with_sums=True,
    )  # fmt: skip
    assert close(out, expected[:, by_head], dtype)
    assert close(sums.sum(1), out.float().sum((2, 3)), torch.float32)


def test_only_what_is_packed_is_normalized():
    norm = Norm(torch.ones(4), torch.ones(4), "relu")
    with pytest.raises(ValueError, match="packed"):
        dynamic_conv.convolve(None, None, None, None, 1, 1, Geometry(1, 1, 0), Tile(16, 16, 16, "gated"), norm=norm)


def test_a_norm_comes_before_the_padding():
    x, scale, shift = channels_last(2, 20, 5, 6), torch.randn(20, device=DEVICE), torch.randn(20, device=DEVICE)
    index = torch.tensor([3, 4, 19], device=DEVICE).expand(2, 1, 3)
    gates = torch.rand(2, 1, 3, device=DEVICE)
    norm = Norm(scale, shift, "relu")
    normal = F.relu(x * scale[:, None, None] + shift[:, None, None])
    index, gates = F.pad(index, (0, 13)).int(), F.pad(gates, (0, 13))
    packed = dynamic_conv.pack(x, index, gates, 1, 3, norm)
    expected = F.pad(normal[:, [3, 4, 19]] * gates[:, 0, :3, None, None], (1, 1, 1, 1))
    assert close(packed[:, 0, ..., :3].permute(0, 3, 1, 2), expected, torch.float32)
    assert (packed[..., 3:] == 0).all()
    assert close(planes.sums(x, norm).sum(1), normal.sum((2, 3)), torch.float32)


@pytest.mark.parametrize("few", [0, planes.FEW])
@pytest.mark.parametrize(
    ("channels", "size", "window"), [(64, 9, Geometry(3, 2, 1)), (5, 6, Geometry(2, 2, 0)), (9, 40, Geometry(3, 1, 1))]
)
def test_max_pool(channels, size, window, few, monkeypatch):
    monkeypatch.setattr(planes, "FEW", few)
    x, bias = channels_last(3, channels, size, size + 2), torch.randn(channels, device=DEVICE)
    expected = F.relu(F.max_pool2d(x + bias[:, None, None], window.kernel, window.stride, window.padding))
    y, sums = planes.max_pool(x, bias, "relu", window)
    assert close(y, expected, torch.float32)
    assert close(sums.sum(1), expected.sum((2, 3)), torch.float32)
    x[1, 2, 3, 3] = torch.nan
    y, _ = planes.max_pool(x, None, "identity", window)
    assert torch.equal(y.isnan(), F.max_pool2d(x, window.kernel, window.stride, window.padding).isnan())
