"""The Triton kernels of the generator, the gate and the 1x1 convolution against the library's own modules.

On a GPU if there is one, else in Triton's interpreter, which the environment must ask for before triton is imported;
without a GPU nothing else in the process could run a Triton kernel, so the variable may stay.
"""

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed")

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from dgconv.layers.gate import GlobalGate, HeadGate  # noqa: E402
from dgconv.layers.saliency import SaliencyGenerator  # noqa: E402
from dgconv.ops import dynamic_group_conv2d_reference  # noqa: E402
from dgconv.ops.triton import pointwise, saliency_gate, saliency_gate_backward  # noqa: E402

TOLERANCE = {torch.float32: 1e-5 if DEVICE == "cpu" else 3e-3, torch.bfloat16: 1e-2, torch.float16: 2e-3}


pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not isinstance(tl.sum, interpreter.InterpretedFunction),
    reason="triton was imported before TRITON_INTERPRET=1 was set",
)


def assert_close(names, actual, expected, tolerance):
    for name, a, e in zip(names.split(), actual, expected, strict=True):
        assert a.shape == e.shape, name
        e = e.float()
        assert (a.float() - e).abs().max() <= tolerance * e.abs().max().clamp(min=1e-3), name


def make_generator(channels, heads, signed=False, squeeze=4):
    return SaliencyGenerator(channels, heads, squeeze, signed=signed, device=DEVICE)


def run_kernels(generator, gate, x, on_gates, on_saliency):
    """Saliency, gates and the gradients of pooled, weight1, weight2 and bias."""
    pooled = saliency_gate.pool(x)
    parameters = [p.detach() for p in (generator.weight1, generator.weight2, generator.bias)]
    is_global = isinstance(gate, GlobalGate)
    keep = torch.tensor(1, device=DEVICE) if is_global else gate.keep
    threshold = gate.threshold if is_global else None
    saliency, gates, hidden, kept = saliency_gate.forward(pooled, *parameters, keep, threshold, generator.signed)
    torch.testing.assert_close(kept, gate.mask(saliency))
    grads = saliency_gate_backward.backward(
        on_gates, on_saliency, saliency, kept, hidden, pooled, *parameters[:2], generator.signed
    )
    return [pooled, saliency, gates, *grads]


def run_modules(generator, gate, x, on_gates, on_saliency):
    pooled = x.float().mean((2, 3)).requires_grad_()
    saliency = generator._score(pooled)
    gates = gate(saliency)
    loss = (gates * on_gates).sum()
    if on_saliency is not None:
        loss = loss + (saliency * on_saliency).sum()
    inputs = (pooled, generator.weight1, generator.weight2, generator.bias)
    return [pooled.detach(), saliency.detach(), gates.detach(), *torch.autograd.grad(loss, inputs)]


def check_gate(generator, gate, x, with_saliency=True):
    shape = (len(x), generator.heads, generator.channels)
    on_gates = torch.randn(shape, device=DEVICE)
    on_saliency = torch.randn(shape, device=DEVICE) if with_saliency else None
    args = (generator, gate, x, on_gates, on_saliency)
    names = "pooled saliency gates grad_pooled grad_weight1 grad_weight2 grad_bias"
    assert_close(names, run_kernels(*args), run_modules(*args), 1e-5)


@pytest.fixture(params=["narrow", "wide"])
def narrow_and_wide(request, monkeypatch):
    """All in one kernel, or one after another: whatever the size."""
    monkeypatch.setattr(saliency_gate, "NARROW", 0 if request.param == "wide" else 1 << 30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "channels", "heads", "size", "squeeze"),
    [(1, 5, 1, 3, 4), (7, 16, 4, 4, 8), (2, 80, 2, 7, 4), (7, 150, 4, 2, 3), (2, 24, 3, 33, 1)],
)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.usefixtures("narrow_and_wide")
def test_gate_equals_modules(batch, channels, heads, size, squeeze, signed):
    generator = make_generator(channels, heads, signed, squeeze)
    x = torch.randn(batch, channels, size, size, device=DEVICE)
    gate = HeadGate(channels, 0.6, device=DEVICE)
    check_gate(generator, gate, x, with_saliency=signed)
    if signed:
        gate = GlobalGate(device=DEVICE)
        gate.threshold.fill_(1.0)
        check_gate(generator, gate, x)


@pytest.mark.parametrize("signed", [False, True])
def test_gate_of_several_images_a_program(signed, monkeypatch):
    monkeypatch.setattr(saliency_gate_backward, "PROGRAMS", 4)
    assert saliency_gate_backward._tile(6, 2, 100, 50)[0] == 4
    generator, gate = make_generator(100, 2, signed, squeeze=2), HeadGate(100, 0.5, device=DEVICE)
    check_gate(generator, gate, torch.randn(6, 100, 1, 1, device=DEVICE))


@pytest.mark.slow
def test_gate_of_a_wide_layer(monkeypatch):
    """Several blocks of channels, of hidden units and of images."""
    monkeypatch.setattr(saliency_gate_backward, "TILE", 2048)
    check_gate(
        make_generator(150, 1, squeeze=3), HeadGate(150, 0.9, device=DEVICE), torch.randn(35, 150, 1, 1).to(DEVICE)
    )


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 9, 20])
@pytest.mark.parametrize("ties", ["ones", "zeros", "few"])
@pytest.mark.usefixtures("narrow_and_wide")
def test_gate_ties(keep, ties):
    generator, gate = make_generator(20, 2), HeadGate(20, 0.5, device=DEVICE)
    gate.keep.fill_(keep)
    generator.reset_to_ones()
    with torch.no_grad():
        if ties == "zeros":
            generator.bias.fill_(-1)  # ReLU makes them all equal
        elif ties == "few":
            generator.bias.copy_(torch.randint(-1, 3, (2, 20), device=DEVICE))
    check_gate(generator, gate, torch.randn(3, 20, 2, 3, device=DEVICE))


@pytest.mark.usefixtures("narrow_and_wide")
def test_gate_ties_of_the_two_zeros_and_negative_scores():
    generator, gate = make_generator(8, 1, signed=True), HeadGate(8, 0.5, device=DEVICE)
    generator.reset_to_ones()
    with torch.no_grad():
        generator.weight1.zero_()
        generator.bias.copy_(torch.tensor([[-1.0, -0.0, 0.0, -0.0, -2.0, 1e-40, 0.0, -1e-40]]))
    x = torch.randn(1, 8, 2, 2, device=DEVICE)
    for keep in range(1, 9):
        gate.keep.fill_(keep)
        check_gate(generator, gate, x)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 6, 11, 12])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.usefixtures("narrow_and_wide")
def test_gate_ranks_nan_last(keep, signed):
    generator, gate = make_generator(12, 2, signed), HeadGate(12, 0.5, device=DEVICE)
    gate.keep.fill_(keep)
    with torch.no_grad():
        generator.bias[0, ::3] = torch.nan
        generator.bias[1, 5] = torch.inf
        generator.bias[1, 6] = -torch.inf
    x = torch.randn(3, 12, 2, 2, device=DEVICE)
    args = (x.mean((2, 3)), generator.weight1, generator.weight2, generator.bias, gate.keep, None, signed)
    saliency, gates, _, kept = saliency_gate.forward(*(a.detach() if isinstance(a, torch.Tensor) else a for a in args))
    torch.testing.assert_close(kept, gate.mask(saliency))
    torch.testing.assert_close(gates, gate(saliency), equal_nan=True)
    assert saliency[:, 0, ::3].isnan().all()
    assert (kept.sum(-1) == keep).all()


@pytest.mark.usefixtures("narrow_and_wide")
def test_global_gate_drops_nan():
    generator = make_generator(6, 1, signed=True)
    with torch.no_grad():
        generator.bias[0, 2] = torch.nan
    pooled, threshold = torch.randn(2, 6, device=DEVICE), torch.zeros((), device=DEVICE)
    parameters = (p.detach() for p in (generator.weight1, generator.weight2, generator.bias))
    _, gates, _, kept = saliency_gate.forward(pooled, *parameters, threshold.long(), threshold, True)
    assert kept.sum() == 10
    assert (gates[:, :, 2] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (2, 3, 40, 40), (1, 70, 1, 1)])
def test_pool(shape, dtype):
    x = torch.randn(shape, device=DEVICE).to(dtype)
    pooled = saliency_gate.pool(x)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, x.float().mean((2, 3)), rtol=1e-5, atol=1e-6)


def test_hidden_layer_too_wide():
    with pytest.raises(ValueError, match="256"):
        saliency_gate_backward._tile(1, 1, 300, 257)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "heads", "pixels"),
    [
        (7, 5, 8, 4, 63),
        (1, 1, 1, 1, 1),
        (2, 33, 12, 2, 100),
        (7, 40, 20, 4, 16),
        (3, 20, 9, 3, 70),
        (2, 17, 260, 2, 20),  # several tiles of outputs
        (9, 140, 6, 1, 10),
    ],
)
def test_pointwise_equals_reference(batch, channels, outputs, heads, pixels, dtype):
    x = torch.randn(batch, channels, pixels, device=DEVICE).to(dtype)
    grad = torch.randn(batch, outputs, pixels, device=DEVICE).to(dtype)
    weight = torch.randn(outputs, channels, device=DEVICE) / channels**0.5
    gates = torch.randn(batch, heads, channels, device=DEVICE).relu()  # about half of them closed
    grad_pooled = torch.randn(batch, channels, device=DEVICE)

    leaves = [x.float().requires_grad_(), weight.clone().requires_grad_(), gates.clone().requires_grad_()]
    expected = dynamic_group_conv2d_reference(leaves[0][..., None], leaves[1][..., None, None], leaves[2])[..., 0]
    loss = (expected * grad.float()).sum()
    grads = torch.autograd.grad(loss, leaves)
    with_pool = torch.autograd.grad(loss_again(leaves, grad) + (leaves[0].mean(2) * grad_pooled).sum(), leaves[0])

    folded = fold(weight, gates, dtype)
    out = pointwise.forward(x, folded)
    actual = pointwise.backward(grad, x, weight, gates, folded)
    pooled_too = pointwise.input_gradient(grad, folded, x.shape[1], grad_pooled)
    assert out.dtype == actual[0].dtype == dtype
    assert actual[1].dtype == actual[2].dtype == torch.float32
    assert_close(
        "out grad_x grad_weight grad_gates grad_x_with_pool",
        [out, *actual, pooled_too],
        [expected.detach(), *grads, *with_pool],
        TOLERANCE[dtype],
    )


def fold(weight, gates, dtype):
    """As the gate's kernel writes it: aligned rows, zero beyond the last channel."""
    folded = weight.float() * gates[:, torch.arange(len(weight), device=DEVICE) % gates.shape[1]]
    return torch.nn.functional.pad(folded, (0, -weight.shape[1] % 16)).to(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "heads"), [(3, 5, 8, 4), (1, 40, 9, 3), (7, 33, 20, 1), (2, 600, 24, 2)]
)
def test_folding_into_the_weight(batch, channels, outputs, heads, signed, dtype):
    generator = make_generator(channels, heads, signed)
    pooled, weight = torch.randn(batch, channels, device=DEVICE), torch.randn(outputs, channels, device=DEVICE)
    parameters = [p.detach() for p in (generator.weight1, generator.weight2, generator.bias)]
    keep, threshold = torch.tensor(3, device=DEVICE), torch.tensor(1.0, device=DEVICE) if signed else None
    plain = saliency_gate.forward(pooled, *parameters, keep, threshold, signed)
    *same, folded = saliency_gate.forward_folded(pooled, *parameters, keep, threshold, signed, weight, dtype)
    assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))
    rounding = 1e-2 if dtype == torch.bfloat16 else 0  # Triton's interpreter cuts off instead
    torch.testing.assert_close(folded, fold(weight, plain[1], dtype), rtol=rounding, atol=0)


def loss_again(leaves, grad):
    x, weight, gates = leaves
    return (dynamic_group_conv2d_reference(x[..., None], weight[..., None, None], gates)[..., 0] * grad.float()).sum()


@pytest.mark.parametrize("images", [1, 64])
def test_pointwise_parts_do_not_depend_on_the_split(images, monkeypatch):
    """Many programs of one image each, or one program for all."""
    monkeypatch.setattr(pointwise, "PROGRAMS", 1 if images == 64 else 10**6)
    test_pointwise_equals_reference(5, 12, 8, 4, 130, torch.float32)


def test_bfloat16_weight():
    """As under autocast: the weight may come rounded."""
    x, weight = torch.randn(2, 6, 20).bfloat16().to(DEVICE), torch.randn(4, 6).bfloat16().to(DEVICE)
    gates = torch.rand(2, 2, 6, device=DEVICE)
    folded = fold(weight, gates, x.dtype)
    actual, wide = (pointwise.backward(x[:, :4], x, w, gates, folded) for w in (weight, weight.float()))
    assert_close("grad_x grad_weight grad_gates", actual, wide, 0)
