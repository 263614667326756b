"""The stem's kernels against torch, in Triton's interpreter if there is no GPU."""

import os

import pytest
import torch
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")

from dgconv.ops.triton import planes, stem_conv  # noqa: E402
from dgconv.ops.triton.stem_conv import StemTile  # noqa: E402

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


def close(actual, expected, dtype):
    return (actual.float() - expected.float()).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tile", [StemTile(16, 16, 0), StemTile(16, 16, 1), StemTile(16, 32, 3), StemTile(32, 16, 8)])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "height", "width"), [(1, 3, 24, 17, 30), (7, 3, 16, 8, 9), (2, 1, 10, 1, 70)]
)
def test_stem(batch, channels, outputs, height, width, tile, dtype):
    x = torch.randn(batch, channels, height, width, device=DEVICE).to(dtype)
    if batch == 1:
        x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outputs, channels, 7, 7, device=DEVICE).to(dtype) / 12
    bias = torch.randn(outputs, device=DEVICE)
    expected = F.conv2d(x.float(), weight.float(), None, 2, 3)
    padded, laid_out = stem_conv.pad(x, dtype), stem_conv.lay_out(weight)
    assert padded.shape[:2] == (batch, height + 6)
    if tile.rows:
        y, sums = stem_conv.pooled(padded, laid_out, bias, "relu", (height, width), outputs, tile)
    else:
        conv = stem_conv.convolve(padded, laid_out, (height, width), outputs, tile)
        assert close(conv, expected, dtype)
        y, sums = planes.max_pool(conv, bias, "relu", stem_conv.POOL)
    expected = F.relu(F.max_pool2d(expected, 3, 2, 1) + bias[:, None, None])
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert close(y, expected, dtype)
    assert close(sums.sum(1), y.float().sum((2, 3)), torch.float32)


def test_a_nan_stays_one():
    x = torch.zeros(1, 3, 32, 32, device=DEVICE)
    x[0, 0, 9, 9] = torch.nan
    padded, weight = stem_conv.pad(x, x.dtype), stem_conv.lay_out(torch.ones(16, 3, 7, 7, device=DEVICE))
    y, _ = stem_conv.pooled(padded, weight, None, "relu", (32, 32), 16, StemTile(16, 16, 2))
    expected = F.max_pool2d(F.conv2d(x, torch.ones(16, 3, 7, 7, device=DEVICE), None, 2, 3), 3, 2, 1)
    assert (y.isnan() == expected.isnan()).all()
