"""The native generator and gate against the layers they stand for."""

from ctypes import byref

import pytest
import torch

from dgconv.deploy.graph import GateSpec
from dgconv.deploy.run.packed import PackedGate
from dgconv.layers import GlobalGate, HeadGate
from dgconv.layers.saliency import SaliencyGenerator
from dgconv.ops import native

pytestmark = pytest.mark.skipif(not native.available(), reason="the native kernels were not built")

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True, params=native.FLOAT_ISAS)
def _isa(request):
    before = native.isa()
    if not native.library().dgconv_select_isa(request.param.encode()):
        pytest.skip(f"this CPU lacks {request.param}")
    yield
    native.library().dgconv_select_isa(before.encode())


def spec(channels, heads, hidden=1, **rule):
    weight1, weight2 = torch.randn(heads, hidden, channels), torch.randn(heads, channels, hidden)
    return GateSpec(weight1, weight2, torch.randn(heads, channels), **rule)


def native_gates(gate, saliency):
    """Which channels are selected, and the gates, both [B, H, C], after checking how the selection is laid out."""
    batch, heads = saliency.shape[:2]
    kept = torch.full(saliency.shape, -1, dtype=torch.int32)
    gates, counts = torch.full(saliency.shape, 7.0), torch.full((batch, heads), -1, dtype=torch.int32)
    packed = PackedGate(gate)
    scratch = torch.empty(native.library().dgconv_gate_scratch_floats(byref(packed.native)))
    buffers = [tensor.data_ptr() for tensor in (saliency.contiguous(), kept, gates, counts, scratch)]
    native.library().dgconv_select(byref(packed.native), batch, *buffers)
    result, mask = torch.zeros_like(saliency), torch.zeros(saliency.shape, dtype=torch.bool)
    for image in range(batch):
        for head in range(heads):
            count = int(counts[image, head])
            chosen = kept[image, head, :count].long()
            assert (chosen.diff() > 0).all(), "ascending, each once"
            mask[image, head, chosen] = True
            result[image, head, chosen] = gates[image, head, :count]
    return mask, result


def native_saliency(gate, pooled):
    packed = PackedGate(gate)
    saliency = torch.full((len(pooled), *gate.bias.shape), 7.0)
    scratch = torch.empty(native.library().dgconv_gate_scratch_floats(byref(packed.native)))
    native.library().dgconv_generate(
        byref(packed.native), len(pooled), pooled.data_ptr(), saliency.data_ptr(), scratch.data_ptr()
    )
    return saliency


def check_head_gate(saliency, keep):
    channels = saliency.shape[-1]
    rule = HeadGate(channels, 0)
    rule.keep.fill_(keep)
    mask, gates = native_gates(spec(channels, saliency.shape[1], keep=keep), saliency)
    assert torch.equal(mask, rule.mask(saliency))
    torch.testing.assert_close(gates, rule(saliency), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("channels", [1, 3, 16, 17, 64, 100])
def test_every_keep_count(channels):
    saliency = torch.randn(2, 3, channels)
    for keep in range(1, channels + 1):
        check_head_gate(saliency, keep)
        check_head_gate(saliency.relu(), keep)


@pytest.mark.parametrize("keep", [1, 5, 37, 38, 99, 100])
def test_ties(keep):
    check_head_gate(torch.ones(2, 2, 100), keep)
    check_head_gate(torch.zeros(2, 2, 100), keep)
    check_head_gate(torch.randint(0, 3, (4, 4, 100)).float(), keep)
    check_head_gate(torch.randint(-1, 2, (4, 4, 100)).float() * 0.0, keep)  # zeros of both signs
    check_head_gate(torch.ones(2, 2, 100).nextafter(torch.randint(0, 3, (2, 2, 100)).float()), keep)


@pytest.mark.parametrize("keep", [1, 10, 22, 26, 30, 36, 39, 40])
def test_nan_and_infinity_in_the_saliency(keep):
    choices = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, 1.0, -1.0, torch.finfo(torch.float).max, 1e-45])
    for _ in range(20):
        check_head_gate(choices[torch.randint(0, len(choices), (2, 2, 40))], keep)
    check_head_gate(torch.full((1, 2, 40), NAN), keep)
    check_head_gate(torch.full((1, 2, 40), -INF), keep)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0, INF])
def test_global_gate(threshold):
    choices = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 0.49])
    saliency = torch.cat([choices[torch.randint(0, len(choices), (2, 3, 50))], torch.randn(2, 3, 51)], -1)
    rule = GlobalGate()
    rule.threshold.fill_(threshold)
    mask, gates = native_gates(spec(101, 3, threshold=threshold), saliency)
    assert torch.equal(mask, rule.mask(saliency))
    torch.testing.assert_close(gates, rule(saliency), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("channels", "heads", "hidden"), [(1, 1, 1), (5, 2, 1), (64, 4, 8), (100, 3, 6), (512, 4, 32)])
@pytest.mark.parametrize("signed", [False, True])
def test_generator(channels, heads, hidden, signed):
    generator = SaliencyGenerator(channels, heads, signed=signed)
    gate = spec(channels, heads, hidden, **({"threshold": 0.1} if signed else {"keep": 1}))
    generator.weight1.data, generator.weight2.data, generator.bias.data = gate.weight1, gate.weight2, gate.bias
    generator.hidden = hidden
    pooled = torch.randn(3, channels)
    expected = generator._score(pooled).detach()
    found = native_saliency(gate, pooled)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert signed == bool((found < 0).any()) or channels < 10


def test_generator_passes_nan_and_infinity_on():
    gate = spec(40, 2, 5, keep=3)
    generator = SaliencyGenerator(40, 2)
    generator.weight1.data, generator.weight2.data, generator.bias.data = gate.weight1, gate.weight2, gate.bias
    generator.hidden = 5
    pooled = torch.randn(4, 40)
    pooled[0, 3], pooled[1, 7], pooled[2, 39] = NAN, INF, -INF
    expected = generator._score(pooled).detach()
    found = native_saliency(gate, pooled)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3, equal_nan=True)
    assert found[0].isnan().all()
    assert found[3].isfinite().all()
