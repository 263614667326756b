"""What all methods owe their user: they drop in for nn.Conv2d, train in any precision and form, and become static."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dgconv import create_model, load_model, save_model
from dgconv.errors import UserError
from dgconv.layers import (
    ChannelGatingConv2d,
    FeatureBoostingConv2d,
    FullyLearnableGroupConv2d,
    LearnedGroupConv2d,
    LowCostCollaborativeConv2d,
    MethodLayer,
    halve_classifier,
    to_static_,
)
from dgconv.layers.indexed import IndexedLinear

LAYERS = [
    LearnedGroupConv2d,
    FullyLearnableGroupConv2d,
    FeatureBoostingConv2d,
    ChannelGatingConv2d,
    LowCostCollaborativeConv2d,
]
METHODS = ["lgc", "flgc", "fbs", "cgnet", "lccn"]
STATIC = ["lgc", "flgc"]
OPTIONS = {
    "lgc": {"groups": 4, "condensation": 2, "group_lasso": 1e-3},
    "flgc": {"groups": 2},
    "fbs": {"density": 0.5, "l1_weight": 1e-3},
    "cgnet": {"base_share": 0.5, "base": "blocks", "target": 0.5},
    "lccn": {},
}


def train_a_little(model, size=16, steps=4):
    """As a trainer does: every hook at its time."""
    layers = [module for module in model.modules() if isinstance(module, MethodLayer)]
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.momentum = 0.9  # statistics that fit after a few steps; layers that multiply explode without
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        for layer in layers:
            layer.before_step(step / (steps - 1))
        loss = F.cross_entropy(model(torch.randn(8, 3, size, size)), torch.arange(8) % model.num_classes)
        penalties = [penalty for layer in layers if (penalty := layer.penalty()) is not None]
        (loss + sum(penalties)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for layer in layers:
        layer.end_epoch(1)
    return model


# --- the layer ---


@pytest.mark.parametrize("kind", LAYERS)
def test_drops_in_for_conv2d(kind):
    layer, conv = kind(8, 12, 3, 2, 1, bias=True), nn.Conv2d(8, 12, 3, 2, 1)
    layer.load_state_dict(conv.state_dict(), strict=False)
    assert torch.equal(layer.weight, conv.weight)
    assert torch.equal(layer.bias, conv.bias)
    x = torch.randn(2, 8, 9, 9)
    assert layer(x).shape == conv(x).shape
    assert kind(8, 12, 3, dtype=torch.float64)(x.double()).dtype == torch.float64
    assert {tensor.device.type for tensor in kind(8, 12, 3, device="meta").state_dict().values()} == {"meta"}
    assert "8, 12, kernel_size=(3, 3)" in repr(layer)


@pytest.mark.parametrize("kind", LAYERS)
def test_autocast_and_channels_last(kind):
    layer, x = kind(8, 16, 3, padding=1), torch.randn(4, 8, 9, 9)
    layer.before_step(1)
    expected = layer(x)
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), expected)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    close = (out - expected).abs() < 0.05 * expected.abs().max()
    assert close.float().mean() > 0.95  # a pixel near its threshold may open in one and not in the other
    out.float().square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYERS)
def test_compiles_to_one_graph_that_follows_the_schedule(kind):
    layer, x = kind(8, 16, 3, padding=1), torch.randn(4, 8, 9, 9)
    compiled = torch.compile(copy.deepcopy(layer), backend="aot_eager", fullgraph=True)
    for progress in (0, 0.5):
        for form in (layer, compiled):
            form.before_step(progress)
        expected, out = layer(x), compiled(x)
        torch.testing.assert_close(out, expected)
        gradients = [
            torch.autograd.grad(result.square().sum(), form.weight)[0]
            for form, result in ((layer, expected), (compiled, out))
        ]
        torch.testing.assert_close(*gradients)


# --- networks ---


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("backbone", "small"),
    [
        ("resnet20", {"width": 8}),
        ("condensenet20", {"stages": (1, 2), "growth": (8, 8)}),
        ("mobilenetv2", {"width": 0.25, "stem_stride": 1}),
    ],
)
def test_networks_train_and_are_saved_with_their_choices(tmp_path, backbone, small, method):
    model = create_model(f"{backbone}_{method}", num_classes=4, **small, **OPTIONS[method])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train_a_little(model)
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == set(before)
    save_model(model, tmp_path)
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(load_model(tmp_path)(x), model.eval()(x))


@pytest.mark.parametrize("method", STATIC)
@pytest.mark.parametrize(
    ("backbone", "small"), [("resnet20", {"width": 8}), ("condensenet20", {"stages": (1, 2), "growth": (8, 8)})]
)
def test_static_network_equals_the_trained_one_without_a_mask(backbone, small, method):
    model = train_a_little(create_model(f"{backbone}_{method}", num_classes=4, **small, **OPTIONS[method])).eval()
    layers = sum(isinstance(module, MethodLayer) for module in model.modules())
    static = copy.deepcopy(model)
    assert to_static_(static) == layers > 0
    assert not any(isinstance(module, MethodLayer) for module in static.modules())
    assert not any("mask" in name or "scores" in name for name in static.state_dict())
    assert not any(module.training for module in static.modules())
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(static(x), model(x), rtol=0, atol=1e-5)
    parameters = [sum(p.numel() for p in net.parameters()) for net in (static, model)]
    assert parameters[0] < parameters[1]


def test_static_form_replaces_a_shared_layer_once_and_leaves_what_depends_on_the_image():
    shared, dynamic = LearnedGroupConv2d(8, 8, 1), FeatureBoostingConv2d(8, 8, 1)
    shared.before_step(1)
    model = nn.Sequential(shared, dynamic, nn.Sequential(shared))
    assert to_static_(model) == 1
    assert model[0] is model[2][0]
    assert model[1] is dynamic
    with pytest.raises(UserError, match="itself a LearnedGroupConv2d"):
        to_static_(shared)


def test_halved_classifier_keeps_the_features_of_largest_weight():
    model = create_model("resnet20_lgc", width=8)
    linear = model.fc
    with torch.no_grad():
        linear.weight[:, 1::2] *= 1e-3
    x = torch.randn(2, 3, 16, 16)
    features = model.eval().forward_head(model.forward_features(x), pre_logits=True)
    halve_classifier(model)
    assert type(model.fc) is IndexedLinear
    assert not model.fc.training, "as the layer it stands for"
    assert model.fc.index.tolist() == list(range(0, 32, 2))
    assert model.num_classes == 10
    torch.testing.assert_close(model(x), features[:, ::2] @ linear.weight[:, ::2].T + linear.bias)
    with pytest.raises(UserError, match="'fc' is halved already"):
        halve_classifier(model)
    with pytest.raises(UserError, match=r"no nn\.Linear"):
        halve_classifier(nn.Sequential(nn.Conv2d(3, 3, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("backbone", ["resnet20", "resnet18", "mobilenetv2", "condensenet20"])
def test_a_layer_that_normalizes_has_no_batch_norm_behind_it(backbone, method):
    def norms(model):
        inside = {m for layer in model.modules() if isinstance(layer, MethodLayer) for m in layer.modules()}
        return sum(isinstance(m, nn.BatchNorm2d) and m not in inside for m in model.modules())

    model, dense = create_model(f"{backbone}_{method}"), create_model(backbone)
    layers = [layer for layer in model.modules() if isinstance(layer, MethodLayer)]
    assert norms(dense) - norms(model) == sum(layer.normalizes for layer in layers)
    assert any(layer.normalizes for layer in layers) == (
        method == "fbs" or (method == "lccn" and backbone.startswith("resnet"))
    )
    names = {name for name, _ in dense.named_modules()}
    assert names <= {name for name, _ in model.named_modules()}, "every name of the dense network is still there"


def test_suppressed_channels_are_still_zero_where_the_next_layer_reads():
    model = create_model("resnet20_fbs", width=8, density=0.5).eval()
    seen = []
    model.layer1[0].conv2.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(torch.randn(3, 3, 16, 16))
    assert (seen[0].flatten(2).any(2).sum(1) <= 4).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: create_model("resnet20_lgc", groups=3), r"3 groups, 16 output channels. Use one of \[1, 2, 4"),
        (lambda: create_model("resnet20_lgc", density=0.5), "no option 'density'.*groups, condensation"),
        (lambda: create_model("resnet20_fbs", density=2), "`density` must be above 0 and up to 1, got 2"),
    ],
)
def test_wrong_use(call, message):
    with pytest.raises(UserError, match=message):
        call()
