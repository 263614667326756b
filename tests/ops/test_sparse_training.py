"""Training that computes only the channels that are kept, against the definition: outputs and gradients."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from dgconv import DynamicGroupConv2d
from dgconv.errors import UserError
from dgconv.layers.gate import HeadGate
from dgconv.ops import (
    dynamic_group_conv2d,
    dynamic_group_conv2d_reference,
    native,
    sparse_training,
    tile_training,
    training,
)

pytestmark = pytest.mark.skipif(not native.available(), reason="there are no native kernels")


def make_inputs(batch=3, channels=10, out_channels=8, heads=4, kernel=(3, 3), size=(9, 7), share=0.4):
    x = torch.randn(batch, channels, *size)
    weight = torch.randn(out_channels, channels, *kernel) / channels**0.5
    kept = torch.rand(batch, heads, channels) < share
    gates = torch.randn(batch, heads, channels) * kept
    return x, weight, gates, kept


def assert_same(inputs, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """Forward and backward against autograd through the definition."""
    *tensors, kept = inputs
    tensors = [part.detach().requires_grad_() for part in tensors]
    expected = dynamic_group_conv2d_reference(*tensors, stride, padding, dilation)
    probe = torch.randn_like(expected)
    wanted = list(torch.autograd.grad((expected * probe).sum(), tensors))
    wanted[2] = wanted[2] * kept
    x, weight, gates = (part.detach() for part in tensors)
    geometry = (stride, padding, dilation)
    size = training.output_size(x, weight, *geometry)
    got = [sparse_training.forward(x, weight, gates, kept, size, *geometry)]
    got += sparse_training.backward(probe, x, weight, gates, kept, *geometry)
    for name, actual, right in zip(("out", "x", "weight", "gates"), got, [expected, *wanted], strict=True):
        assert actual.shape == right.shape, name
        assert (actual - right).abs().max() <= 1e-5 * right.abs().max().clamp(min=1), name


SHAPES = {
    "one image": {"batch": 1, "channels": 16, "out_channels": 40, "kernel": (1, 1), "size": (5, 5)},
    "seven images": {"batch": 7, "channels": 9, "out_channels": 34, "heads": 2, "kernel": (3, 5), "size": (11, 30)},
    "one head": {"batch": 2, "channels": 16, "out_channels": 32, "heads": 1, "size": (4, 4)},
    "several blocks": {"batch": 1, "channels": 24, "out_channels": 12, "size": (50, 61)},
    "many outputs": {"batch": 2, "channels": 5, "out_channels": 136, "size": (6, 6)},
    "even kernel": {"batch": 2, "channels": 3, "kernel": (2, 4), "size": (5, 6)},
}
GEOMETRIES = [
    ((1, 1), (1, 1), (1, 1)),
    ((2, 2), (1, 1), (1, 1)),
    ((1, 2), (2, 3), (2, 1)),
    ((3, 1), (0, 0), (1, 1)),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_equals_the_reference(shape, geometry):
    inputs = make_inputs(**SHAPES[shape])
    if min(training.output_size(*inputs[:2], *geometry)) > 0:
        assert_same(inputs, *geometry)


@pytest.mark.parametrize("count", [0, 1, 10])
def test_nothing_one_and_all_kept(count):
    x, weight, gates, _ = make_inputs()
    kept = torch.zeros(3, 4, 10, dtype=torch.bool)
    kept[:, :, 10 - count :] = True
    gates = torch.randn_like(gates) * kept
    assert_same((x, weight, gates, kept), padding=(1, 1))


def test_heads_that_differ_in_how_many_they_keep():
    x, weight, gates, kept = make_inputs(batch=2)
    kept[0, 0], kept[0, 1], kept[1, 3] = False, True, False
    assert_same((x, weight, gates * kept, kept), padding=(1, 1))


def test_a_kept_channel_of_gate_zero_has_a_gradient():
    """Kept is what the mask says, not what is not zero."""
    x, weight, gates, kept = make_inputs()
    kept[:, :, 0] = True
    gates[:, :, 0] = 0
    assert_same((x, weight, gates, kept), padding=(1, 1))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_do_not_depend_on_threads(threads):
    inputs, geometry = make_inputs(batch=5, channels=33, out_channels=24, size=(8, 8)), ((1, 1), (1, 1), (1, 1))
    grad = torch.randn(5, 24, 8, 8)
    expected = sparse_training.backward(grad, *inputs, *geometry)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        got = sparse_training.backward(grad, *inputs, *geometry)
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("isa", native.FLOAT_ISAS)
def test_every_instruction_set(isa):
    """In a process of its own, which has another one."""
    code = (
        "import sys; sys.path.insert(0, 'tests/ops'); import torch; torch.set_num_threads(1)\n"
        "import test_sparse_training as t\n"
        "from dgconv.ops import native\n"
        f"assert native.isa() == {isa!r}\n"
        "for shape in t.SHAPES.values(): t.assert_same(t.make_inputs(**shape), (1, 1), (1, 1), (1, 1))\n"
        "t.assert_same(t.make_inputs(), (2, 1), (1, 0), (1, 2))\n"
    )
    import os

    environment = os.environ | {native.ISA_VARIABLE: isa}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    if "this CPU lacks it" in done.stderr:
        pytest.skip(f"no {isa} here")
    assert done.returncode == 0, done.stderr


# -- in bfloat16, by tiles -------------------------------------------------------------------------------------------

needs_tiles = pytest.mark.skipif(not tile_training.is_there(), reason="this CPU has no tiles of bfloat16")
LAYOUTS = {"planes": torch.contiguous_format, "channels last": torch.channels_last}


def assert_same_by_tiles(inputs, geometry, layout=torch.contiguous_format):
    """Against the definition in float64, of what was rounded: only results are rounded, and x times a gate."""
    *tensors, kept = inputs
    x, weight, gates = (part.to(torch.bfloat16) for part in tensors)
    exact = [part.double().requires_grad_() for part in (x, weight, gates)]
    expected = dynamic_group_conv2d_reference(*exact, *geometry)
    probe = torch.randn_like(expected).to(torch.bfloat16)
    wanted = list(torch.autograd.grad((expected * probe.double()).sum(), exact))
    wanted[2] = wanted[2] * kept
    x, weight, probe = (part.contiguous(memory_format=layout) for part in (x, weight, probe))
    size = training.output_size(x, weight, *geometry)
    got = [tile_training.forward(x, weight, gates, kept, size, *geometry)]
    got += tile_training.backward(probe, x, weight, gates, kept, *geometry)
    for name, actual, right in zip(("out", "x", "weight", "gates"), got, [expected, *wanted], strict=True):
        assert (actual.shape, actual.dtype) == (right.shape, torch.bfloat16), name
        assert (actual - right).abs().max() <= 0.01 * right.abs().max().clamp(min=1e-2), name
    for images in got[:2]:
        assert images.is_contiguous(memory_format=layout)


@needs_tiles
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [*SHAPES, "more than a tile"])
@pytest.mark.parametrize("geometry", [*GEOMETRIES[:3], ((2, 1), (5, 4), (2, 2)), ((2, 2), (0, 0), (1, 1))], ids=str)
def test_tiles_equal_the_reference(shape, geometry, layout):
    torch.manual_seed(0)
    shapes = SHAPES | {"more than a tile": {"channels": 97, "out_channels": 102, "heads": 3, "size": (13, 19)}}
    inputs = make_inputs(**shapes[shape])
    if min(training.output_size(*inputs[:2], *geometry)) > 0:
        assert_same_by_tiles(inputs, geometry, LAYOUTS[layout])


@needs_tiles
@pytest.mark.parametrize("count", [0, 1, 9, 10])
def test_tiles_of_nothing_one_and_all_kept(count):
    x, weight, gates, _ = make_inputs()
    kept = torch.zeros(3, 4, 10, dtype=torch.bool)
    kept[:, :, 10 - count :] = True
    kept[1, 2] = False
    assert_same_by_tiles((x, weight, torch.randn_like(gates) * kept, kept), ((1, 1), (1, 1), (1, 1)))


@needs_tiles
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_of_tiles_do_not_depend_on_threads(threads):
    *tensors, kept = make_inputs(batch=5, channels=97, out_channels=24, size=(8, 8))
    tensors, geometry = [part.to(torch.bfloat16) for part in tensors], ((1, 1), (1, 1), (1, 1))
    grad = torch.randn(5, 24, 8, 8).to(torch.bfloat16)
    expected = tile_training.backward(grad, *tensors, kept, *geometry)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        got = tile_training.backward(grad, *tensors, kept, *geometry)
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, got, expected))


@needs_tiles
@pytest.mark.parametrize("shape", [(3, 5, 7, 6), (1, 130, 3, 3), (2, 64, 1, 1)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_means_of_planes(shape, layout):
    x = torch.randn(shape).to(torch.bfloat16).contiguous(memory_format=LAYOUTS[layout])
    torch.testing.assert_close(tile_training.means(x), x.float().mean((2, 3)), atol=1e-6, rtol=1e-5)


@needs_tiles
def test_long_strides_and_float32_are_not_for_tiles():
    x = torch.randn(1, 1, 1, 1)
    assert tile_training.fits(x.to(torch.bfloat16), (2, 2))
    assert not tile_training.fits(x.to(torch.bfloat16), (4, 4))
    assert not tile_training.fits(x, (1, 1))


# -- through the layer and the operation -----------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """Which of the sparse functions were called."""
    seen = []
    for name in ("forward", "backward"):
        function = getattr(sparse_training, name)
        monkeypatch.setattr(
            sparse_training, name, lambda *args, _name=name, _run=function: (seen.append(_name), _run(*args))[1]
        )
    if not native.isa().startswith(sparse_training.FAST):
        pytest.skip("it would be slower here")
    return seen


def gradients(layer, x):
    x = x.clone().requires_grad_()
    out = layer(x)
    loss = (out * torch.sin(torch.arange(out.numel())).view_as(out)).sum() + layer.saliency.square().sum()
    return [out, *torch.autograd.grad(loss, [x, *layer.parameters()])]


@pytest.mark.parametrize("options", [{}, {"gate": "global"}, {"tie_rule": "drop"}, {"saliency_start": "ones"}], ids=str)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layer_trains_as_it_did(options, kernel, layout, calls, monkeypatch):
    torch.manual_seed(1)
    layer = DynamicGroupConv2d(24, 32, kernel, padding=kernel // 2, bias=True, **options)
    if options.get("gate") == "global":
        layer.gate.threshold.fill_(1.2)
    x = torch.randn(7, 24, 10, 11).contiguous(memory_format=LAYOUTS[layout])
    fast = gradients(layer, x)
    folds = kernel == 1 and layout == "channels last"  # one product of matrices as they lie
    assert calls == ([] if folds else ["forward", "backward"])
    assert fast[0].is_contiguous(memory_format=LAYOUTS[layout])
    monkeypatch.setattr(sparse_training, "fits", lambda *_: False)
    for actual, expected in zip(fast, gradients(layer, x), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5 * float(expected.detach().abs().max()), rtol=0)
    assert len(calls) == (0 if folds else 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_may_lie_in_any_way(dtype, layout, calls):
    """As those of a sum do, which are one number, or those of the other layout."""
    layer = DynamicGroupConv2d(24, 32, 3, padding=1).to(dtype)
    x = torch.randn(8, 24, 10, 11).to(dtype).contiguous(memory_format=LAYOUTS[layout]).requires_grad_()
    out = layer(x)
    for probe in (torch.ones(1, dtype=dtype), torch.randn(8, 11, 32, 10).to(dtype).permute(0, 2, 3, 1)):
        grads = [
            torch.autograd.grad(out, [x, layer.weight], grad, retain_graph=True)
            for grad in (probe.expand(out.shape), probe.expand(out.shape).contiguous())
        ]
        assert all(map(torch.equal, *grads))
    assert calls == ["forward", *["backward"] * 4]


def test_it_is_left_where_it_does_not_pay(calls):
    layer = DynamicGroupConv2d(24, 32, 3, padding=1)
    layer(torch.randn(1, 24, 5, 5))
    layer.set_pruning_rate(0.1)
    layer(torch.randn(8, 24, 10, 10))
    layer.set_pruning_rate(0.75)
    layer(torch.randn(8, 24, 10, 20)[..., ::2])
    layer.double()(torch.randn(8, 24, 10, 10, dtype=torch.float64))
    layer.float().set_pruning_rate(0.5)
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(8, 24, 10, 10))
    with torch.autocast("cpu", torch.float16):
        layer(torch.randn(8, 24, 10, 10))
    assert calls == []
    layer(torch.randn(8, 24, 10, 10))
    assert calls == ["forward"]


def test_in_bfloat16_it_is_the_definition_rounded(calls):
    """From what autocast rounded; what is kept for the backward pass is rounded, too."""
    layer, x = DynamicGroupConv2d(24, 32, 3, padding=1), torch.randn(8, 24, 10, 10, requires_grad=True)
    saved = []
    with (
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor),
    ):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    assert not any(tensor.dtype == torch.float32 and tensor.shape == x.shape for tensor in saved if tensor is not x)
    gates = layer.gate(layer.generator(x))
    exact = dynamic_group_conv2d_reference(x, layer.weight, gates, (1, 1), (1, 1), (1, 1))
    assert (out - exact).abs().max() <= 0.02 * exact.abs().max()
    probe = torch.randn_like(exact)
    got = torch.autograd.grad((out.float() * probe).sum(), [x, layer.weight])
    right = torch.autograd.grad((exact * probe).sum(), [x, layer.weight])
    for actual, expected in zip(got, right, strict=True):
        assert (actual - expected).abs().max() <= 0.03 * expected.abs().max()
    assert calls == ["forward", "backward"]


class SoftGate(HeadGate):
    """Passes a little of what it leaves out."""

    def forward(self, saliency):
        return saliency * torch.where(self.mask(saliency), 1.0, 0.1)


def test_a_gate_of_your_own_and_hooks_are_called(calls):
    layer, x = DynamicGroupConv2d(24, 32, 3, padding=1), torch.randn(8, 24, 10, 10)
    plain = layer(x)
    hooked = copy.deepcopy(layer)
    hooked.gate.register_forward_hook(lambda module, args, out: 2 * out)
    torch.testing.assert_close(hooked(x), 2 * plain)
    layer.gate = SoftGate(24, 0.75)
    assert not torch.equal(layer(x), plain)
    assert calls == ["forward"]


def test_a_gate_is_observed(calls):
    layer, seen = DynamicGroupConv2d(24, 32, 3, padding=1), []
    with layer.gate.observed_by(lambda saliency, mask: seen.append(mask)):
        layer(torch.randn(8, 24, 10, 10))
    assert calls == ["forward"]
    assert seen[0].sum(-1).eq(6).all()


def test_second_derivatives_are_refused(calls):
    x, weight, gates, kept = make_inputs(batch=8)
    x.requires_grad_()
    (grad,) = torch.autograd.grad(
        (dynamic_group_conv2d(x, weight, gates, padding=1, kept=kept) ** 2).sum(), x, create_graph=True
    )
    assert calls == ["forward", "backward"]
    with pytest.raises(UserError, match="first derivatives only"):
        grad.sum().backward()


def test_the_operation_passes_torchs_own_checks():
    x, weight, gates, kept = make_inputs(batch=8)
    inputs = [part.requires_grad_() for part in (x, weight, gates)]
    geometry = ([1, 1], [1, 1], [1, 1])
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.dgconv.dynamic_group_conv2d.default, (*inputs, *geometry, kept), test_utils=tests)


def test_a_network_in_a_process_that_was_forked(calls):
    """A child has no threads of its parent's, and computes all the same."""
    import os

    layer = nn.Sequential(DynamicGroupConv2d(24, 32, 3, padding=1))
    x = torch.randn(8, 24, 10, 10)
    expected = layer(x)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(layer(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
