"""The Triton kernels of batch normalization with ReLU and of the grouped 3x3 convolution, against PyTorch in float64.

On a GPU if there is one, else in Triton's interpreter, which the environment must ask for before triton is imported;
without a GPU nothing else in the process could run a Triton kernel, so the variable may stay.
"""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from dgconv.ops.triton import batch_norm_relu, batch_norm_relu_backward, grouped_conv3x3  # noqa: E402

pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not isinstance(tl.sum, interpreter.InterpretedFunction),
    reason="triton was imported before TRITON_INTERPRET=1 was set",
)

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda dtype: str(dtype).removeprefix("torch."))


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Relative in norm: ‖actual - expected‖ ≤ tolerance · ‖expected‖."""
    assert actual.shape == expected.shape
    error = (actual.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-12)
    assert error <= tolerance, f"relative error {error:.2e} above {tolerance:.0e}"


class Norm:
    """A BatchNorm2d with random parameters and running statistics, and its float64 twin."""

    def __init__(self, channels: int) -> None:
        self.twin = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3).to(DEVICE)
        for vector in (self.twin.weight, self.twin.running_var):
            nn.init.uniform_(vector, 0.5, 2.0)
        for vector in (self.twin.bias, self.twin.running_mean):
            nn.init.normal_(vector)
        self.weight, self.bias = self.twin.weight.detach().clone(), self.twin.bias.detach().clone()
        self.running_mean, self.running_var = self.twin.running_mean.clone(), self.twin.running_var.clone()
        self.twin = self.twin.double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        return batch_norm_relu.forward(x, self.weight, self.bias, self.running_mean, self.running_var, 0.3, 1e-3)


@pytest.fixture(params=["resident", "chunked"])
def launches(request, monkeypatch) -> str:
    """Both ways through `batch_norm_relu`: a channel held by one program, and in chunks (several in these shapes)."""
    if request.param == "chunked":
        monkeypatch.setattr(batch_norm_relu, "RESIDENT_ELEMENTS", 0)
        monkeypatch.setattr(batch_norm_relu, "CHUNK_ELEMENTS", 64)
    return request.param


@pytest.mark.slow
@DTYPES
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (1, 3, 4, 4), (4, 2, 16, 16), (2, 3, 1, 1)], ids=str)
def test_batch_norm_relu_matches_torch(launches, shape, dtype):
    norm = Norm(shape[1])
    x, dy = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
    wide = x.double().requires_grad_()
    expected = F.relu(norm.twin(wide))
    expected.backward(dy.double())

    y, mean, invstd, _ = norm.forward(x)
    dx, dweight, dbias = batch_norm_relu_backward.backward(dy, x, norm.weight, norm.bias, mean, invstd)

    tolerance = TOLERANCE[dtype]
    assert y.dtype == dx.dtype == dtype
    assert_close(y, expected, tolerance)
    assert_close(norm.running_mean, norm.twin.running_mean, 1e-5)
    assert_close(norm.running_var, norm.twin.running_var, 1e-5)
    assert_close(dweight, norm.twin.weight.grad, 1e-5)
    assert_close(dbias, norm.twin.bias.grad, 1e-5)
    assert_close(dx, wide.grad, 2e-2 if x[:, 0].numel() == 2 else tolerance)  # the terms of two values nearly cancel


@pytest.mark.slow
@DTYPES
def test_images_may_lie_apart(launches, dtype):
    """As the first channels of a wider tensor: the same to the last bit."""
    wide, dy = draw(3, 7, 6, 5, dtype=dtype), draw(3, 4, 6, 5, dtype=dtype)
    results = []
    for x in (wide[:, :4], wide[:, :4].contiguous()):
        torch.manual_seed(1)
        norm = Norm(4)
        y, mean, invstd, _ = norm.forward(x)
        results.append([y, mean, *batch_norm_relu_backward.backward(dy, x, norm.weight, norm.bias, mean, invstd)])
    assert all(torch.equal(apart, together) for apart, together in zip(*results, strict=True))


@DTYPES
@pytest.mark.parametrize("shape", [(3, 5, 6, 9), (7, 2, 4, 4)], ids=str)
def test_means_of_the_output(launches, shape, dtype):
    y, _, _, means = Norm(shape[1]).forward(draw(*shape, dtype=dtype))
    assert means is not None
    assert_close(means, y.double().mean((2, 3)), 1e-6)


def test_no_means_where_a_chunk_is_less_than_an_image(monkeypatch):
    monkeypatch.setattr(batch_norm_relu, "RESIDENT_ELEMENTS", 0)
    monkeypatch.setattr(batch_norm_relu, "CHUNK_ELEMENTS", 64)
    assert Norm(2).forward(draw(2, 2, 9, 9))[3] is None


def test_statistics_keep_their_digits_under_a_large_mean(launches):
    norm = Norm(2)
    x = draw(8, 2, 16, 16) + 30
    expected = F.relu(norm.twin(x.double()))
    y, mean, invstd, _ = norm.forward(x)
    assert_close(mean, x.double().mean((0, 2, 3)), 1e-6)
    assert_close(invstd, (x.double().var((0, 2, 3), correction=0) + 1e-3).rsqrt(), 1e-5)
    assert_close(norm.running_var, norm.twin.running_var, 1e-5)
    assert_close(y, expected, 1e-5)


def test_chunks_grow_where_a_channel_would_have_too_many(monkeypatch):
    monkeypatch.setattr(batch_norm_relu, "MAX_CHUNKS", 4)
    as_far_as_it_grows = {"BLOCK_B": 8, "BLOCK_P": 1024}  # 8192 elements
    assert batch_norm_relu._chunk_block(64, 32 * 32) == (as_far_as_it_grows, 8)
    monkeypatch.undo()
    assert batch_norm_relu._chunk_block(64, 32 * 32) == ({"BLOCK_B": 2, "BLOCK_P": 1024}, 32)
    assert batch_norm_relu._chunk_block(3, 3000) == ({"BLOCK_B": 1, "BLOCK_P": 2048}, 6)


@DTYPES
def test_batch_norm_relu_in_evaluation_matches_torch(dtype):
    norm = Norm(5)
    x = draw(3, 5, 7, 9, dtype=dtype)
    expected = F.relu(norm.twin.eval()(x.double()))
    wide = torch.cat([x, x], 1)
    y, means = batch_norm_relu.forward_eval(
        wide[:, :5], norm.weight, norm.bias, norm.running_mean, norm.running_var, 1e-3
    )
    assert y.dtype == dtype
    assert_close(means, y.double().mean((2, 3)), 1e-6)
    assert_close(y, expected, TOLERANCE[dtype])


def test_a_nan_is_not_hidden_by_the_relu():
    norm = Norm(2)
    x = draw(2, 2, 4, 4)
    x[0, 0, 0, 0] = float("nan")
    y = norm.forward(x)[0]
    assert y[:, 0].isnan().all()
    assert not y[:, 1].isnan().any()


def test_batch_norm_relu_rejects_what_it_cannot_take():
    norm = Norm(2)
    with pytest.raises(ValueError, match="more than one value"):
        norm.forward(draw(1, 2, 1, 1))
    with pytest.raises(ValueError, match="contiguous"):
        norm.forward(draw(2, 4, 4, 2).permute(0, 3, 1, 2))
    with pytest.raises(ValueError, match="float32 vectors of 3 channels"):
        norm.forward(draw(2, 3, 4, 4))
    x = draw(2, 2, 4, 4)
    with pytest.raises(ValueError, match="dy must be"):
        batch_norm_relu_backward.backward(x[:1], x, norm.weight, norm.bias, norm.running_mean, norm.running_var)


CONVOLUTIONS = [  # batch, groups, channels in and out of a group, height, width
    (3, 4, 8, 2, 7, 9),  # widths that are no power of two
    (1, 4, 16, 4, 16, 16),
    (2, 1, 32, 8, 8, 8),
    (1, 2, 5, 3, 4, 20),  # channels that are no power of two
    (2, 1, 40, 33, 3, 3),  # more channels than a block holds
    (3, 2, 4, 1, 1, 1),  # nothing but padding around
]


@pytest.mark.slow
@DTYPES
@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=str)
def test_grouped_conv3x3_matches_torch(sizes, dtype):
    batch, groups, inside, outside, height, width = sizes
    x = draw(batch, groups * inside, height, width, dtype=dtype)
    weight = draw(groups * outside, inside, 3, 3, dtype=dtype).float()  # in fp32, of values that dtype can hold
    dy = draw(batch, groups * outside, height, width, dtype=dtype)
    wide_x, wide_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    expected = F.conv2d(wide_x, wide_weight, padding=1, groups=groups)
    expected.backward(dy.double())

    y = grouped_conv3x3.forward(x, weight, groups)
    dx, dweight = grouped_conv3x3.backward(dy, x, weight, groups)

    tolerance = 2e-3 if DEVICE == "cuda" and dtype == torch.float32 else TOLERANCE[dtype]  # TF32
    assert y.dtype == dx.dtype == dtype
    assert dweight.dtype == torch.float32
    assert_close(y, expected, tolerance)
    assert_close(dx, wide_x.grad, tolerance)
    assert_close(dweight, wide_weight.grad, tolerance)


def test_the_weight_gradient_adds_several_tiles_to_each_of_several_chunks(monkeypatch):
    monkeypatch.setattr(grouped_conv3x3, "BUSY_PROGRAMS", 6)  # 10 tiles of 4 rows, 2 groups: 3 chunks of 4 tiles
    x, dy = draw(5, 8, 8, 32), draw(5, 4, 8, 32)
    weight = draw(4, 4, 3, 3)
    wide = weight.double().requires_grad_()
    F.conv2d(x.double(), wide, padding=1, groups=2).backward(dy.double())
    assert_close(grouped_conv3x3.backward(dy, x, weight, 2)[1], wide.grad, 2e-3 if DEVICE == "cuda" else 1e-5)


def test_grouped_conv3x3_rejects_what_it_cannot_take():
    x, weight = draw(2, 8, 4, 4), draw(4, 4, 3, 3)
    with pytest.raises(ValueError, match="no grouped 3x3"):
        grouped_conv3x3.forward(x, weight, 4)
    with pytest.raises(ValueError, match="no grouped 3x3"):
        grouped_conv3x3.forward(x, draw(4, 4, 1, 1), 2)
    with pytest.raises(ValueError, match="contiguous"):
        grouped_conv3x3.forward(x.transpose(2, 3), weight, 2)
    with pytest.raises(ValueError, match="wide"):
        grouped_conv3x3.forward(draw(1, 8, 1, 257), weight, 2)
    with pytest.raises(ValueError, match="dy must be"):
        grouped_conv3x3.backward(x, x, weight, 2)


def test_a_convolution_into_a_part_of_a_tensor():
    x, weight = draw(2, 8, 5, 6), draw(4, 2, 3, 3)
    whole = torch.zeros(2, 9, 5, 6, device=DEVICE)
    grouped_conv3x3.forward(x, weight, 4, whole[:, 3:7])
    assert torch.equal(whole[:, 3:7], grouped_conv3x3.forward(x, weight, 4))
    assert not whole[:, :3].any()
    assert not whole[:, 7:].any()
