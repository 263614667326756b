"""The layer against a plain loop over images and heads, and as a drop-in for nn.Conv2d."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from dgconv import DynamicGroupConv2d
from dgconv.errors import UserError
from dgconv.layers.gate import Gate


def plain_loop(layer, x, keep):
    """The paper's equations, image by image and head by head, convolving the kept channels only."""
    outputs = []
    for image in x:
        pooled = image.mean((1, 2))
        heads = []
        for head in range(layer.heads):
            generator = layer.generator
            hidden = (generator.weight1[head] @ pooled).relu()
            saliency = (generator.weight2[head] @ hidden + generator.bias[head]).relu()
            ranking = sorted(range(len(saliency)), key=lambda c: (-saliency[c].item(), c))
            kept = sorted(ranking[:keep])
            emphasized = image[kept] * saliency[kept][:, None, None]
            weight = layer.weight[head :: layer.heads][:, kept]
            heads.append(F.conv2d(emphasized, weight, None, layer.stride, layer.padding, layer.dilation))
        shuffled = [heads[o % layer.heads][o // layer.heads] for o in range(layer.out_channels)]
        outputs.append(torch.stack(shuffled))
    out = torch.stack(outputs)
    return out if layer.bias is None else out + layer.bias[:, None, None]


def force_ties(layer, kind):
    with torch.no_grad():
        if kind != "none":
            layer.generator.weight2.zero_()
        if kind == "all equal":
            layer.generator.bias.fill_(1)
        if kind == "few values":
            layer.generator.bias.copy_(torch.randint(-1, 3, layer.generator.bias.shape))


@pytest.mark.slow
@settings(max_examples=240, deadline=None, derandomize=True)
@given(
    batch=st.sampled_from([1, 2, 7]),
    channels=st.integers(1, 20),
    outputs_a_head=st.integers(1, 4),
    heads=st.sampled_from([1, 2, 3, 4]),
    kernel=st.sampled_from([1, 1, 2, 3]),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    height=st.integers(5, 8),
    width=st.integers(5, 8),
    pruning_rate=st.sampled_from([0, 0.3, 0.5, 0.75, 0.99]),
    bias=st.booleans(),
    ties=st.sampled_from(["none", "none", "few values", "all equal"]),
    seed=st.integers(0, 2**31),
)
def test_equals_plain_loop(
    batch, channels, outputs_a_head, heads, kernel, stride, padding, dilation, height, width, pruning_rate,
    bias, ties, seed,
):  # fmt: skip
    torch.manual_seed(seed)
    layer = DynamicGroupConv2d(
        channels,
        outputs_a_head * heads,
        kernel,
        stride,
        padding,
        dilation,
        heads,
        bias,
        pruning_rate=pruning_rate,
    )
    force_ties(layer, ties)
    x = torch.randn(batch, channels, height, width, requires_grad=True)
    keep = max(1, -(-round((1 - pruning_rate) * channels * 1e6) // 10**6))
    actual, expected = layer(x), plain_loop(layer, x, keep)
    probe = torch.sin(torch.arange(actual.numel())).view(actual.shape)
    wrt = [x, *layer.parameters()]
    actual_grads = torch.autograd.grad((actual * probe).sum(), wrt)
    expected_grads = torch.autograd.grad((expected * probe).sum(), wrt, allow_unused=True)
    for name, got, want in zip(
        ["out", "x", *(name for name, _ in layer.named_parameters())],
        [actual, *actual_grads],
        [expected, *expected_grads],
        strict=True,
    ):
        want = torch.zeros_like(got) if want is None else want
        assert (got - want).abs().max() <= 1e-5 * want.abs().max().clamp(min=1), name


def trained_like(**options):
    """A layer whose saliencies differ between images."""
    layer = DynamicGroupConv2d(16, 32, 3, padding=1, **options)
    with torch.no_grad():
        layer.generator.bias.normal_()
    return layer


def test_exactly_the_kept_channels_reach_the_output():
    layer = trained_like(pruning_rate=0.75)
    x = torch.randn(5, 16, 6, 6, requires_grad=True)
    mask = layer.gate.mask(layer.generator(x))
    assert (mask.sum(-1) == 4).all()
    assert not torch.equal(mask[0], mask[1]), "different images choose different channels"
    for head in range(4):
        weight_grad = torch.autograd.grad(layer(x)[:1, head::4].sum(), layer.weight)[0]
        used = weight_grad[head::4].abs().sum((0, 2, 3)) > 0
        assert not used[~mask[0, head]].any()


class FirstThree(Gate):
    def mask(self, saliency):
        return torch.arange(saliency.shape[-1]).expand_as(saliency) < 3


class OfPeaks(torch.nn.Module):
    def forward(self, x):
        return x.amax((2, 3))[:, None].expand(-1, 2, -1)  # one score a channel, the same for both heads


def test_a_gate_and_a_generator_of_your_own():
    layer = DynamicGroupConv2d(6, 4, 3, heads=2)
    layer.gate, layer.generator = FirstThree(), OfPeaks()
    x = torch.randn(2, 6, 5, 5)
    scaled = x[:, :3] * x[:, :3].amax((2, 3), keepdim=True)
    torch.testing.assert_close(layer(x), F.conv2d(scaled, layer.weight[:, :3]))


def test_dense_checkpoint_loads():
    dense = torch.nn.Conv2d(16, 32, 3, bias=False)
    layer = DynamicGroupConv2d(16, 32, 3)
    result = layer.load_state_dict(dense.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert torch.equal(layer.weight, dense.weight)


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (2, 1), (3, 2), (4, 3), ((2, 3), 1), ((3, 2), (2, 1))])
def test_same_padding_is_conv2ds(kernel, dilation):
    dense = torch.nn.Conv2d(8, 8, kernel, padding="same", dilation=dilation)
    layer = DynamicGroupConv2d(8, 8, kernel, padding="same", dilation=dilation, bias=True, pruning_rate=0)
    layer.load_state_dict(dense.state_dict(), strict=False)
    layer.generator.reset_to_ones()
    x = torch.randn(2, 8, 9, 9)
    torch.testing.assert_close(layer(x), dense(x))


def test_saliency_is_there_for_the_losses_in_training_only():
    layer, x = trained_like(), torch.randn(2, 16, 6, 6)
    layer(x)
    assert layer.saliency.shape == (2, 4, 16)
    assert layer.saliency.requires_grad
    layer.eval()(x)
    assert layer.saliency is None


def test_a_layer_in_training_can_be_copied_and_pickled():
    layer, x = trained_like(), torch.randn(2, 16, 6, 6)
    expected = layer(x)
    for twin in (copy.deepcopy(layer), pickle.load(io.BytesIO(pickle.dumps(layer)))):
        torch.testing.assert_close(twin(x), expected)


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["head", "global"])
def test_one_compiled_graph_serves_the_whole_schedule(gate):
    torch._dynamo.reset()
    layer = trained_like(gate=gate)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for step in range(9):
        x = torch.randn(3, 16, 6, 6, requires_grad=True)
        if gate == "head":
            layer.gate.set_rate(step / 10)
        else:
            layer.gate.threshold.fill_(step / 10)
        actual, expected = compiled(x), layer(x)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(
            torch.autograd.grad(actual.square().sum(), x), torch.autograd.grad(expected.square().sum(), x)
        )
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.usefixtures("_inductor_asks_no_compiler")
def test_inductor_compiles_it():
    torch._dynamo.reset()
    layer, x = trained_like(), torch.randn(3, 16, 6, 6)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


@pytest.mark.parametrize("gate", ["head", "global"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_export_with_a_dynamic_batch(gate, kernel):
    layer = DynamicGroupConv2d(16, 32, kernel, padding=kernel // 2, gate=gate).eval()
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(layer, (torch.randn(2, 16, 6, 6),), dynamic_shapes=({0: batch},))
    for size in (1, 7):
        x = torch.randn(size, 16, 6, 6)
        torch.testing.assert_close(program.module()(x), layer(x), atol=1e-5, rtol=1e-5)


def test_autocast_keeps_the_choice_of_channels():
    layer, x = trained_like(), torch.randn(4, 16, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    assert layer.saliency.dtype == torch.float32
    exact = layer(x)
    assert (out.float() - exact).norm() / exact.norm() < 1e-2


def test_bfloat16_and_float64_modules():
    layer, x = trained_like(), torch.randn(4, 16, 6, 6)
    exact = layer.double()(x.double())
    assert exact.dtype == torch.float64
    assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_channels_last_passes_through():
    layer, x = trained_like(), torch.randn(4, 16, 6, 6)
    out = layer(x.to(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, layer(x))


def test_checkpoint_carries_the_rate():
    layer = trained_like(pruning_rate=0.75)
    layer.gate.set_rate(0.5)
    twin = trained_like(pruning_rate=0.75)
    twin.load_state_dict(layer.state_dict())
    assert int(twin.gate.keep) == 8


def test_repr_and_target_after_loading_another_rate():
    """The gate is as loaded; where a schedule ends is the layer's own, as when a training goes on half way."""
    layer = trained_like(pruning_rate=0.75)
    layer.load_state_dict(trained_like(pruning_rate=0.5).state_dict())
    assert layer.pruning_rate == 0.75
    assert "pruning_rate=0.5 (target 0.75)" in repr(layer)
    layer.set_pruning_rate(0.5)
    assert repr(layer) == repr(trained_like(pruning_rate=0.5))


def test_initial_scale():
    per_head = DynamicGroupConv2d(64, 256, 3, heads=4).weight.std().item()
    undivided = DynamicGroupConv2d(64, 256, 3, heads=4, per_head_init=False).weight.std().item()
    assert per_head / undivided == pytest.approx(2, rel=0.02)
    assert undivided == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02)


def test_reset_begins_anew():
    layer = DynamicGroupConv2d(16, 32, 3, bias=True)
    for parameter in layer.parameters():
        parameter.data.fill_(7)
    layer.reset_parameters()
    assert (layer.bias == 0).all()
    assert (layer.generator.bias == 1).all()
    assert not any((parameter == 7).any() for parameter in layer.parameters())


@pytest.mark.parametrize("gate", ["head", "global"])
def test_only_the_global_gate_sees_signs(gate):
    layer = DynamicGroupConv2d(16, 32, 1, gate=gate)
    torch.nn.init.constant_(layer.generator.bias, -1)
    layer(torch.zeros(1, 16, 2, 2))
    assert layer.saliency.unique().tolist() == [-1 if gate == "global" else 0]


def test_a_bias_leaves_the_precision_as_it_is():
    layer = DynamicGroupConv2d(16, 32, 3, bias=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(2, 16, 5, 5)).dtype == torch.bfloat16


def test_repr_tells_what_matters():
    text = repr(DynamicGroupConv2d(16, 32, 3, padding=1))
    for part in ("16, 32", "heads=4", "pruning_rate=0.75", "keep=4 of 16", "hidden=2"):
        assert part in text


def test_meta_device():
    layer = DynamicGroupConv2d(16, 32, 3, device="meta")
    assert layer(torch.empty(2, 16, 8, 8, device="meta")).shape == (2, 32, 6, 6)
    repr(layer)


@pytest.mark.parametrize("gate", ["head", "global"])
def test_from_the_meta_device(gate):
    layer = DynamicGroupConv2d(16, 32, 3, gate=gate, device="meta").to_empty(device="cpu")
    for tensor in layer.state_dict().values():
        tensor.fill_(77)  # what was in memory
    layer.reset_parameters()
    fresh = DynamicGroupConv2d(16, 32, 3, gate=gate)
    assert list(layer.gate.buffers()) == list(fresh.gate.buffers())
    assert (layer.generator.bias == 1).all()
    assert not (layer.weight == 77).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 3}, "3 heads, 32 output channels"),
        ({"heads": 0}, "0 heads"),
        ({"heads": 2.0}, "heads must be whole numbers, got 16, 32 and 2.0"),
        ({"heads": "4"}, "must be whole numbers, got 16, 32 and '4'"),
        ({"pruning_rate": 1.0}, r"in \[0, 1\), got 1.0"),
        ({"pruning_rate": -0.1}, r"got -0.1"),
        ({"pruning_rate": float("nan")}, "got nan"),
        ({"pruning_rate": "0.5"}, r"in \[0, 1\), got '0.5'"),
        ({"pruning_rate": None}, "got None"),
        ({"gate": "layer"}, "'head' or 'global', got 'layer'"),
        ({"keep_rule": "floor"}, "'ceil' or 'round', got 'floor'"),
        ({"tie_rule": "random"}, "got 'random'"),
        ({"squeeze": 0}, "`squeeze` must be a whole number from 1 .*, got 0"),
        ({"squeeze": 1.5}, "got 1.5"),
        ({"kernel_size": 0}, "kernel_size must be a whole number of at least 1.*got 0"),
        ({"kernel_size": (3, 3, 3)}, r"or two of them, got \(3, 3, 3\)"),
        ({"stride": 0}, "stride must be"),
        ({"stride": 1.0}, "stride must be"),
        ({"dilation": (1, 0)}, "dilation must be"),
        ({"padding": -1}, "padding must be a whole number of at least 0"),
        ({"padding": "full"}, "got 'full'"),
        ({"padding": "same", "stride": 2}, "needs stride 1"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UserError, match=message):
        DynamicGroupConv2d(16, 32, **{"kernel_size": 3, **arguments})


def test_no_channels():
    with pytest.raises(UserError, match="in_channels must be at least 1, got 0"):
        DynamicGroupConv2d(0, 32, 3)
    with pytest.raises(UserError, match="0 output channels"):
        DynamicGroupConv2d(16, 0, 3)


def test_channels_that_are_no_whole_numbers():
    with pytest.raises(UserError, match=r"in_channels.*must be whole numbers, got 16\.0, 32 and 4"):
        DynamicGroupConv2d(16.0, 32, 3)
    DynamicGroupConv2d(*np.array([16, 32]), 3)  # which nn.Conv2d takes, too


def test_wrong_inputs():
    layer = trained_like()
    with pytest.raises(UserError, match=r"\[batch, 16, height, width\].*got \[2, 15, 6, 6\]"):
        layer(torch.randn(2, 15, 6, 6))
    x = torch.randn(4, 16, 6, 6)
    x[2, 5, 0, 0] = float("nan")
    with pytest.raises(UserError, match="image 2 of the batch"):
        layer(x)


# --- what the paper says of the layer ---


def test_the_scale_of_the_generator_does_not_pass_a_batch_norm():
    """Saliencies twice as large choose the same channels, and the batch norm behind the layer takes the factor out."""
    layer, norm = DynamicGroupConv2d(16, 8, 3, padding=1, pruning_rate=0.5), torch.nn.BatchNorm2d(8, eps=1e-12)
    x = torch.rand(6, 16, 5, 5)
    before = norm(layer(x))
    with torch.no_grad():
        layer.generator.weight2.mul_(3)  # behind a ReLU that commutes with the factor
        layer.generator.bias.mul_(3)
    torch.testing.assert_close(norm(layer(x)), before, rtol=1e-3, atol=1e-4)


def test_at_the_start_every_channel_has_the_same_chance():
    """Over many fresh layers, no channel is chosen more often than chance has it.

    Where a layer is narrow its few hidden units may all be zero; the saliencies then tie, and the first ones win.
    """
    layers, channels, rate = 400, 128, 0.5
    x = torch.rand(1, channels, 3, 3)
    kept = torch.zeros(channels)
    for _ in range(layers):
        layer = DynamicGroupConv2d(channels, 4, 1, pruning_rate=rate, heads=1)
        kept += layer.gate.mask(layer.generator(x))[0, 0].float()
    spread = (layers * rate * (1 - rate)) ** 0.5
    assert (kept - layers * rate).abs().max() < 5 * spread


def test_weights_of_channels_that_are_not_chosen_have_no_gradient():
    layer = DynamicGroupConv2d(12, 8, 3, padding=1, pruning_rate=0.75, heads=2)
    x = torch.rand(1, 12, 5, 5)
    layer(x).square().sum().backward()
    kept = layer.gate.mask(layer.generator(x))[0].bool()  # [heads, channels]
    for head in range(2):
        gradients = layer.weight.grad[head::2].abs().sum((0, 2, 3))
        assert (gradients[~kept[head]] == 0).all()
        assert (gradients[kept[head]] > 0).all()
