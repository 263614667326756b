"""A whole network in its fused form against its plain form: loss, every gradient, every buffer."""

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from dgconv import DynamicGroupConv2d, create_model, dynamic_layers
from dgconv.errors import UserError
from dgconv.layers import LearnedGroupConv2d, StandardGroupConv2d
from dgconv.layers.fusible import BatchNormReLU2d, GroupedConv2d, HalvingAvgPool2d, run_pointwise
from dgconv.ops import fused
from dgconv.ops.overlap import overlapping
from dgconv.train import lasso_loss, take_saliencies
from dgconv.train.graphs import CapturedCall

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FUSED = {"cuda": "", "cpu": "interpret"}[DEVICE]
TOLERANCE = 1e-4 if DEVICE == "cpu" else 2e-2  # TF32 in the kernels
THROUGH_A_NETWORK = 1e-4 if DEVICE == "cpu" else 1e-2  # a ReLU that turns moves a whole gradient of so small a network
pytest.importorskip("triton")


def one_step(model, monkeypatch, mode):
    monkeypatch.setenv("DGCONV_TRITON", mode)
    model = copy.deepcopy(model)
    x = torch.sin(torch.arange(6 * 3 * 8 * 8, device=DEVICE) ** 2 / 7).view(6, 3, 8, 8)
    loss = F.cross_entropy(model(x), torch.arange(6, device=DEVICE))
    saliencies = take_saliencies(model)
    (loss + 0.01 * lasso_loss(saliencies) if saliencies else loss).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss.item(), gradients, {n: b for n, b in model.named_buffers() if "num_batches" not in n}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["", "_sgc", "_lgc", "_dgc", "_dgcg"])
def test_fused_network_equals_plain(method, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # its errors grow to 20 % on the way
    torch.manual_seed(0)
    model = create_model(f"condensenet20{method}", stages=(2, 1), growth=(4, 8)).to(DEVICE)
    for layer in model.modules():
        if isinstance(layer, LearnedGroupConv2d):
            layer.keep_only(layer.in_channels // 2)
    loss, *found = one_step(model, monkeypatch, FUSED)
    plain_loss, *expected = one_step(model, monkeypatch, "0")
    assert loss == pytest.approx(plain_loss, rel=TOLERANCE / 10)
    for fused_tensors, plain_tensors in zip(found, expected, strict=True):
        for key, tensor in plain_tensors.items():
            tensor = tensor.float()
            allowed = THROUGH_A_NETWORK * tensor.abs().max().clamp(min=1e-3)
            assert (fused_tensors[key].float() - tensor).abs().max() <= allowed, key


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tf32"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "groups", "size"),
    [(1, 1, 1, 1, 1), (7, 24, 12, 4, 5), (3, 70, 9, 1, 11), (2, 40, 140, 2, 3), (5, 6, 6, 3, 9)],
)
def test_pointwise_conv_equals_torch(batch, channels, outputs, groups, size, interleaved, dtype, tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    x = torch.randn(batch, channels, size, size, device=DEVICE).to(dtype).requires_grad_()
    weight = torch.randn(outputs, channels // groups, 1, 1, device=DEVICE, requires_grad=True)
    grad = torch.randn(batch, outputs, size, size, device=DEVICE).to(dtype)
    out = fused.pointwise_conv(x, weight, groups, interleaved=interleaved)
    expected = F.conv2d(x.double(), weight.double(), groups=groups)
    if interleaved:
        expected = expected.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
    found = [out, *torch.autograd.grad(out, (x, weight), grad)]
    wanted = [expected, *torch.autograd.grad(expected, (x, weight), grad.double())]
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5 if DEVICE == "cpu" or not tf32 else 3e-3
    for actual, right in zip(found, wanted, strict=True):
        assert (actual - right).abs().max() <= tolerance * right.abs().max()
    assert [tensor.dtype for tensor in found] == [dtype, dtype, torch.float32]


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["head", "global"])
@pytest.mark.parametrize(
    ("kernel", "stride", "heads", "layout"),
    [
        (3, 1, 2, torch.contiguous_format),  # generator and gate are fused, the convolution is not
        (1, 2, 2, torch.contiguous_format),
        (3, 1, 1, torch.channels_last),  # the copies for the heads are made by our kernels
        (3, 2, 4, torch.channels_last),
        (5, 1, 6, torch.channels_last),  # more heads than one launch takes
        (1, 1, 3, torch.channels_last),
    ],
)
def test_fused_layer_equals_plain(gate, kernel, stride, heads, layout, monkeypatch):
    layer = DynamicGroupConv2d(12, 12, kernel, stride, kernel // 2, heads=heads, gate=gate, bias=True).to(DEVICE)
    with torch.no_grad():
        layer.generator.bias.normal_()
    if gate == "global":
        layer.gate.threshold.fill_(0.5)
    x = torch.randn(3, 12, 6, 6, device=DEVICE).contiguous(memory_format=layout).requires_grad_()
    results = []
    for mode in (FUSED, "0"):
        monkeypatch.setenv("DGCONV_TRITON", mode)
        out = layer(x)
        loss = out.square().sum() + lasso_loss([layer.saliency])
        results.append([out, *torch.autograd.grad(loss, [x, *layer.parameters()])])
    for actual, expected in zip(*results, strict=True):
        assert (actual - expected).abs().max() <= TOLERANCE * expected.abs().max()
    assert results[0][0].is_contiguous(memory_format=layout)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["condensenet20_dgc", "condensenet20_dgcg"])
def test_fused_evaluation_equals_plain(name, monkeypatch):
    """The answers, and the masks that an observer of the gates sees."""
    model = create_model(name, stages=(2, 1), growth=(4, 8)).to(DEVICE)
    for _, layer in dynamic_layers(model):
        if name.endswith("g"):
            layer.gate.threshold.fill_(1.0)
    x = torch.sin(torch.arange(6 * 3 * 8 * 8, device=DEVICE) ** 2 / 7).view(6, 3, 8, 8)
    with torch.no_grad():
        model(x)  # so that the batch norms have seen something
        model.eval()
        results = []
        for mode in (FUSED, "0"):
            monkeypatch.setenv("DGCONV_TRITON", mode)
            masks, saliencies = [], []
            for _, layer in dynamic_layers(model):
                layer.gate.observer = lambda saliency, mask, s=saliencies, m=masks: (s.append(saliency), m.append(mask))
            results.append((model(x), masks, saliencies))
    (out, masks, saliencies), (plain_out, plain_masks, plain_saliencies) = results
    for saliency, plain in zip(saliencies, plain_saliencies, strict=True):
        assert (saliency - plain).abs().max() <= TOLERANCE * plain.abs().max()
    assert (out - plain_out).abs().max() <= TOLERANCE * plain_out.abs().max()
    assert len(masks) == len(plain_masks) == 3
    if DEVICE == "cpu":  # TF32 may turn a close decision
        assert all(torch.equal(a, b) for a, b in zip(masks, plain_masks, strict=True))
    assert 0 < sum(int(mask.sum()) for mask in masks) < sum(mask.numel() for mask in masks)
    assert all(layer.saliency is None for _, layer in dynamic_layers(model))


def test_the_fused_form_is_really_used(monkeypatch):
    monkeypatch.setenv("DGCONV_TRITON", FUSED)
    norm = BatchNormReLU2d(4).to(DEVICE)
    x = torch.randn(2, 4, 4, 4, device=DEVICE, requires_grad=True)
    assert "BatchNormReLU" in norm(x).grad_fn.name()
    monkeypatch.setenv("DGCONV_TRITON", "0")
    assert "BatchNormReLU" not in norm(x).grad_fn.name()
    assert "BatchNormReLU" not in norm.eval()(x).grad_fn.name()


@pytest.mark.parametrize("layer", [torch.nn.Conv2d, StandardGroupConv2d, LearnedGroupConv2d])
def test_the_fused_pointwise_convolution_is_really_used(layer, monkeypatch):
    monkeypatch.setenv("DGCONV_TRITON", FUSED)
    conv, x = layer(8, 8, 1, bias=False).to(DEVICE), torch.randn(2, 8, 4, 4, device=DEVICE)
    assert "PointwiseConv" in run_pointwise(conv, x).grad_fn.name()
    assert "PointwiseConv" not in run_pointwise(layer(8, 8, 1).to(DEVICE), x[..., :1].expand(2, 8, 4, 4)).grad_fn.name()
    with monkeypatch.context() as context:
        context.setenv("DGCONV_TRITON", "0")
        assert "PointwiseConv" not in run_pointwise(conv, x).grad_fn.name()


@pytest.mark.parametrize(
    "layer",
    [
        StandardGroupConv2d(8, 8, 1),
        LearnedGroupConv2d(8, 8, 1),
        GroupedConv2d(8, 8, 3, padding=1, groups=2, bias=False),
    ],
)
def test_only_what_torch_would_take_reaches_the_kernels(layer, monkeypatch):
    """They would read beyond a tensor of fewer channels."""
    monkeypatch.setenv("DGCONV_TRITON", FUSED)
    layer = layer.to(DEVICE)
    image = torch.randn(8, 4, 4, device=DEVICE)
    torch.testing.assert_close(layer(image), layer(image[None])[0], rtol=TOLERANCE, atol=TOLERANCE)
    with pytest.raises(RuntimeError, match="to have 8 channels, but got 7"):
        layer(image[None, :7])
    with pytest.raises(RuntimeError, match=r"(should be the same|expected scalar type)"):
        layer(image[None].double())


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_dynamic_layer_refuses_another_dtype(kernel, monkeypatch):
    monkeypatch.setenv("DGCONV_TRITON", FUSED)
    layer, x = DynamicGroupConv2d(8, 8, kernel).to(DEVICE), torch.randn(2, 8, 4, 4, device=DEVICE)
    with pytest.raises(UserError, match="one dtype"):
        layer(x.double())


def test_pooling_one_image_without_a_batch(monkeypatch):
    monkeypatch.setenv("DGCONV_TRITON", FUSED)
    x = torch.randn(8, 4, 6, device=DEVICE, requires_grad=True)
    (gradient,) = torch.autograd.grad(HalvingAvgPool2d()(x).sum(), x)
    torch.testing.assert_close(gradient, torch.full_like(x, 0.25))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["", "_sgc", "_lgc", "_dgc"])
def test_torch_func_goes_by_torchs_own_operations(method, monkeypatch):
    monkeypatch.setenv("DGCONV_TRITON", FUSED)
    model = create_model(f"condensenet20{method}", stages=(1, 1), growth=(4, 4)).to(DEVICE).eval()
    parameters, x = dict(model.named_parameters()), torch.randn(2, 3, 8, 8, device=DEVICE)

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    expected = torch.autograd.grad(loss(parameters), parameters.values())
    found = torch.func.grad(loss)(parameters)
    torch.testing.assert_close(list(found.values()), list(expected), rtol=10 * TOLERANCE, atol=TOLERANCE)


def test_only_on_a_gpu_unless_asked(monkeypatch):
    monkeypatch.delenv("DGCONV_TRITON", raising=False)
    assert fused.fits(torch.zeros(1, device=DEVICE)) == (DEVICE == "cuda")


def test_features_grow_in_place_once(monkeypatch):
    """The second layer of a stage writes behind what is there; asked again, it does not overwrite that."""
    monkeypatch.setenv("DGCONV_TRITON", FUSED)
    stages = create_model("condensenet20", stages=(3, 1), growth=(4, 8)).to(DEVICE).stages
    x = torch.randn(2, 8, 6, 6, device=DEVICE)
    room = fused.Room(8 + 3 * 4)
    one = stages[0](x, room)
    two = stages[1](one, room)
    assert two.data_ptr() == one.data_ptr()
    before = two.detach().clone()
    with torch.no_grad():
        stages[1].conv2.weight.add_(1)
    again = stages[1](one, room)
    assert again.data_ptr() != one.data_ptr()
    assert torch.equal(two, before)
    assert not torch.equal(again, two)
    assert stages[2](two, room).is_contiguous()


@pytest.mark.skipif(DEVICE == "cpu", reason="a second stream needs a GPU")
@pytest.mark.parametrize("name", ["condensenet20_dgc", "condensenet20_dgcg"])
def test_gradients_beside_the_backward_pass_are_the_same(name):
    """To the last bit, in eager mode and replayed from a graph; and gradients that are there already are added to."""
    torch.manual_seed(0)
    model = create_model(name).to(DEVICE)
    model.stem.requires_grad_(False)  # cuDNN may choose another algorithm each time
    x, target = torch.randn(64, 3, 32, 32, device=DEVICE), torch.randint(10, (64,), device=DEVICE)

    def backward(beside: bool) -> list[torch.Tensor]:
        for parameter in model.parameters():
            parameter.grad = None
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), target) + 1e-3 * lasso_loss(take_saliencies(model))
        with overlapping(x.device) if beside else nullcontext():
            loss.backward()
        return [parameter.grad for parameter in model.parameters() if parameter.requires_grad]

    expected = [gradient.clone() for gradient in backward(False)]
    for _ in range(5):
        assert all(map(torch.equal, backward(True), expected))
    captured = CapturedCall(lambda x: backward(True), (x,), changes=model.buffers())
    for _ in range(20):
        assert all(map(torch.equal, captured(x), expected))

    for parameter in model.parameters():
        parameter.grad = None
    with overlapping(x.device):
        for _ in range(2):
            loss = F.cross_entropy(model(x), target) + 1e-3 * lasso_loss(take_saliencies(model))
            loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
