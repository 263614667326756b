"""The operation against its definition: outputs and gradients, over shapes, layouts and precisions."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from dgconv.errors import UserError
from dgconv.ops import dynamic_group_conv2d, dynamic_group_conv2d_reference, training


def make_inputs(batch=3, channels=10, out_channels=8, heads=4, kernel=3, height=9, width=7, dtype=torch.float32):
    x = torch.randn(batch, channels, height, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(out_channels, channels, kernel, kernel, dtype=dtype) / (kernel * channels**0.5)
    gates = torch.randn(batch, heads, channels, dtype=dtype).relu()  # about half of them closed
    return x, weight.requires_grad_(), gates.requires_grad_()


def outputs_and_gradients(op, inputs, *args):
    out = op(*inputs, *args)
    probe = torch.sin(torch.arange(out.numel(), device=out.device)).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad((out * probe).sum(), inputs)]


def assert_same(inputs, *args, tolerance=1e-5):
    fast = outputs_and_gradients(dynamic_group_conv2d, inputs, *args)
    slow = outputs_and_gradients(dynamic_group_conv2d_reference, inputs, *args)
    for name, actual, expected in zip(("out", "x", "weight", "gates"), fast, slow, strict=True):
        scale = expected.abs().max().clamp(min=1)
        assert ((actual - expected).abs().max() / scale) < tolerance, name


@pytest.mark.slow
@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    batch=st.sampled_from([1, 2, 7]),
    channels=st.integers(1, 12),
    outputs_a_head=st.integers(1, 5),
    heads=st.sampled_from([1, 2, 3, 4]),
    kernel=st.sampled_from([1, 1, 2, 3, 5]),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    height=st.integers(9, 12),
    width=st.integers(9, 12),
    seed=st.integers(0, 2**31),
)
def test_equals_reference(
    batch, channels, outputs_a_head, heads, kernel, stride, padding, dilation, height, width, seed
):
    torch.manual_seed(seed)
    inputs = make_inputs(batch, channels, outputs_a_head * heads, heads, kernel, height, width)
    assert_same(inputs, stride, padding, dilation)


@pytest.mark.parametrize(("kernel", "padding"), [(1, 0), (3, 1)])
@pytest.mark.parametrize("kept", ["none", "one", "all"])
def test_extreme_gates(kernel, padding, kept):
    x, weight, gates = make_inputs(kernel=kernel)
    gates = torch.full_like(gates, 1.0 if kept == "all" else 0.0)
    if kept == "one":
        gates[:, :, 3] = 2.0
    assert_same((x, weight, gates.requires_grad_()), 1, padding, 1)


def test_with_open_gates_it_is_the_plain_convolution():
    x, weight, gates = make_inputs()
    out = dynamic_group_conv2d(x, weight, torch.ones_like(gates), 2, 1, 1)
    torch.testing.assert_close(out, torch.nn.functional.conv2d(x, weight, None, 2, 1, 1))


@pytest.mark.parametrize("outputs", [8, 400])
def test_pointwise_takes_both_forms(outputs):
    """Folded weights for few outputs on many pixels, by head for many outputs on few."""
    inputs = make_inputs(out_channels=outputs, kernel=1, height=4, width=5)
    assert training._folds(inputs[1], inputs[2], (0, 0), (4, 5)) == (outputs == 8)
    assert_same(inputs)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_channels_last_in_and_out(kernel, stride):
    x, weight, gates = make_inputs(kernel=kernel)
    x = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    weight = weight.detach().to(memory_format=torch.channels_last).requires_grad_()
    assert_same((x, weight, gates), stride, kernel // 2, 1)
    out = dynamic_group_conv2d(x, weight, gates, stride, kernel // 2)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.autograd.grad(out.sum(), x)[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kernel", [1, 3])
def test_non_contiguous_input(kernel):
    x, weight, gates = make_inputs(kernel=kernel, height=8, width=8)
    window = x.detach()[:, :, 1::2, :6].requires_grad_()
    assert not window.is_contiguous()
    assert_same((window, weight, gates), 1, kernel // 2)


@pytest.mark.parametrize("kernel", [1, 3])
def test_bfloat16_is_as_close_as_bfloat16_can_be(kernel):
    inputs = make_inputs(batch=7, channels=24, out_channels=12, kernel=kernel)
    rounded = tuple(t.detach().bfloat16().requires_grad_() for t in inputs)
    exact = tuple(t.detach().float().requires_grad_() for t in rounded)
    fast = outputs_and_gradients(dynamic_group_conv2d, rounded, 1, kernel // 2)
    slow = outputs_and_gradients(dynamic_group_conv2d_reference, exact, 1, kernel // 2)
    for actual, expected in zip(fast, slow, strict=True):
        assert actual.dtype == torch.bfloat16
        assert (actual.float() - expected).norm() / expected.norm() < 1e-2


@pytest.mark.parametrize("kernel", [1, 3])
def test_gradcheck(kernel):
    inputs = make_inputs(2, 3, 4, 2, kernel, 4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *t: dynamic_group_conv2d(*t, 1, kernel // 2), inputs)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 2)])
def test_gradients_by_torch_func(kernel, stride):
    inputs = make_inputs(kernel=kernel)
    out, *expected = outputs_and_gradients(dynamic_group_conv2d, inputs, stride, kernel // 2)
    probe = torch.sin(torch.arange(out.numel())).view(out.shape)
    loss = torch.func.grad(lambda *t: (dynamic_group_conv2d(*t, stride, kernel // 2) * probe).sum(), (0, 1, 2))
    torch.testing.assert_close(loss(*inputs), tuple(expected), rtol=1e-4, atol=1e-5)


def test_autocast_computes_in_the_low_precision_and_returns_gradients_in_the_high():
    inputs = make_inputs()
    with torch.autocast("cpu", torch.bfloat16):
        out = dynamic_group_conv2d(*inputs, padding=1)
    assert out.dtype == torch.bfloat16
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(out.float().sum(), inputs))


@pytest.mark.parametrize("kernel", [1, 3])
def test_empty_batch(kernel):
    x, weight, gates = make_inputs(batch=0, kernel=kernel)
    out = dynamic_group_conv2d(x, weight, gates, padding=kernel // 2)
    assert out.shape == (0, 8, 9, 7)
    assert torch.autograd.grad(out.sum(), weight)[0].abs().sum() == 0


@pytest.mark.slow
@pytest.mark.parametrize("args", [((1, 1), (0, 0), (1, 1)), ((2, 2), (0, 0), (1, 1)), ((2, 1), (1, 1), (2, 2))])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_registration(args, kernel, channels_last):
    x, weight, gates = make_inputs(kernel=kernel)
    if channels_last:
        x = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    torch.library.opcheck(torch.ops.dgconv.dynamic_group_conv2d.default, (x, weight, gates, *args))
    out = torch.ops.dgconv.dynamic_group_conv2d(x, weight, gates, *args).detach()
    tensors = [t.detach() for t in (x, weight, gates)]
    torch.library.opcheck(torch.ops.dgconv.dynamic_group_conv2d_backward.default, (out, *tensors, *args))


def test_second_derivatives_are_refused_and_come_from_torch_func():
    x, weight, gates = make_inputs()
    (grad,) = torch.autograd.grad((dynamic_group_conv2d(x, weight, gates) ** 2).sum(), x, create_graph=True)
    with pytest.raises(UserError, match="first derivatives only; for second ones"):
        torch.autograd.grad(grad.sum(), x)
    second = torch.func.hessian(lambda gates: (dynamic_group_conv2d(x, weight, gates) ** 2).sum())(gates)
    assert second.shape == 2 * gates.shape
    assert second.any()


@pytest.mark.slow
def test_runs_without_importing_the_compiler_which_takes_a_second():
    probe = """import sys, torch, dgconv
layer, x = dgconv.DynamicGroupConv2d(8, 8, 3), torch.randn(2, 8, 5, 5)
layer(x).sum().backward()
layer.eval()(x)
assert "torch._dynamo" not in sys.modules"""
    subprocess.run([sys.executable, "-c", probe], check=True)


@pytest.mark.parametrize("kernel", [1, 3])
def test_torchs_own_counter_sees_a_plain_convolution(kernel):
    x, weight, gates = make_inputs(kernel=kernel)
    counts = []
    for run in (lambda: dynamic_group_conv2d(x, weight, gates), lambda: F.conv2d(x, weight)):
        with FlopCounterMode(display=False) as counter:
            run().sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("kernel", [1, 3])
def test_keeps_only_its_inputs_for_the_backward_pass(kernel):
    x, weight, gates = make_inputs(kernel=kernel)
    saved = []

    def pack(tensor):
        saved.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        dynamic_group_conv2d(x, weight, gates, padding=kernel // 2)
    assert sorted(saved) == sorted(t.data_ptr() for t in (x, weight, gates))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, g: (x[:, :-1], w, g), "9 channels, the weight expects 10"),
        (lambda x, w, g: (x, w, g[:-1]), r"\[3, H, 10\], got \[2, 4, 10\]"),
        (lambda x, w, g: (x, w, g[:, :3]), "3 heads do not divide 8"),
        (lambda x, w, g: (x, w, g[:, :0]), "0 heads do not divide 8"),
        (lambda x, w, g: (x[0], w, g), r"got shapes \[10, 9, 7\]"),
        (lambda x, w, g: (x.double(), w, g), "one dtype, got torch.float64"),
    ],
)
def test_wrong_use(change, message):
    with pytest.raises(UserError, match=message):
        dynamic_group_conv2d(*change(*make_inputs()))


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        ({"padding": "same"}, "padding must be a whole number of at least 0, or two of them, got 'same'"),
        ({"stride": 0}, "stride must be a whole number of at least 1"),
        ({"dilation": (1, 1, 1)}, r"dilation .* got \(1, 1, 1\)"),
    ],
)
def test_wrong_geometry(geometry, message):
    with pytest.raises(UserError, match=message):
        dynamic_group_conv2d(*make_inputs(), **geometry)


def test_images_smaller_than_the_kernel():
    x, weight, gates = make_inputs()
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        dynamic_group_conv2d(x[:, :, :1], weight, gates)
