"""The passes around the by-head convolutions against the same in plain torch."""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")

from dgconv.ops.triton import head_copies  # noqa: E402

SHAPES = [  # batch, channels, heads, height, width
    (1, 1, 1, 1, 1),
    (7, 5, 2, 3, 5),
    (2, 130, 4, 7, 9),  # two blocks of channels, several tiles of pixels
    (3, 12, 6, 8, 4),  # more heads than one launch takes
    (2, 3, 9, 40, 41),
]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # the interpreter rounds towards 0


def channels_last(*shape, dtype):
    return torch.randn(shape, device=DEVICE, dtype=dtype).contiguous(memory_format=torch.channels_last)


def assert_close(actual, expected, dtype):
    assert actual.shape == expected.shape
    assert (actual.float() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("batch", "channels", "heads", "height", "width"), SHAPES)
def test_scale_and_combine(batch, channels, heads, height, width, dtype, monkeypatch):
    monkeypatch.setattr(head_copies, "MAX_CHUNKS", 3)  # several tiles a chunk, even for a small image
    x, gates = (
        channels_last(batch, channels, height, width, dtype=dtype),
        torch.randn(batch, heads, channels).to(DEVICE),
    )
    expected = x.float()[:, None] * gates[..., None, None]
    copies = head_copies.scale(x, gates)
    assert all(copy.is_contiguous(memory_format=torch.channels_last) for copy in copies)
    assert_close(torch.stack(copies, 1), expected, dtype)

    grads = [channels_last(*x.shape, dtype=dtype) for _ in range(heads)]
    stacked = torch.stack(grads, 1).float()
    grad_x, grad_gates = head_copies.combine(grads, x, gates)
    assert grad_x.stride() == x.stride()
    assert_close(grad_x, (stacked * gates[..., None, None]).sum(1), dtype)
    assert_close(grad_gates, (stacked * x.float()[:, None]).sum((3, 4)), torch.float32)

    grad_pooled = torch.randn(batch, channels, device=DEVICE)
    expected = grad_x.float() + grad_pooled[..., None, None] / (height * width)
    head_copies.add_pooled(grad_x, grad_pooled)
    assert_close(grad_x, expected, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("batch", "channels", "heads", "height", "width"), SHAPES)
def test_interleave_and_separate(batch, channels, heads, height, width, dtype):
    parts = [channels_last(batch, channels, height, width, dtype=dtype) for _ in range(heads)]
    whole = head_copies.interleave(parts)
    assert whole.is_contiguous(memory_format=torch.channels_last)
    for head, part in enumerate(parts):
        assert torch.equal(whole[:, head::heads], part)
    again = head_copies.separate(whole, heads)
    assert all(torch.equal(a, b) for a, b in zip(again, parts, strict=True))
