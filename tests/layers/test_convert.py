"""convert_: what it replaces, what it leaves, and that a whole network keeps computing and learning."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from dgconv import count_macs, deploy
from dgconv.errors import UserError
from dgconv.layers import (
    ChannelGatingConv2d,
    DynamicGroupConv2d,
    FeatureBoostingConv2d,
    FullyLearnableGroupConv2d,
    GlobalGate,
    HeadGate,
    LearnedGroupConv2d,
    StandardGroupConv2d,
)
from dgconv.layers.convert import DGCConfig, convert_
from dgconv.layers.select import dynamic_layers, set_pruning_rate
from dgconv.models.others import import_library

UNPRUNED = DGCConfig(pruning_rate=0)


def everything(name: str, conv: nn.Conv2d) -> bool:
    return True


def only_reason(conv: nn.Module, config: DGCConfig = UNPRUNED) -> str:
    """Why the one convolution of a model is left; it must be there, untouched, afterwards."""
    model = nn.Sequential(conv)
    report = convert_(model, config, everything)
    assert model[0] is conv
    assert not report.replaced
    (row,) = report.left
    return row.reason


# --- whole networks ---

NETWORKS = {
    "torchvision/resnet18": 19,
    "torchvision/mobilenet_v2": 34,  # 35 pointwise or dense, less the stem; 17 depthwise
    "torchvision/densenet121": 119,
    "timm/resnet50": 52,
    "timm/efficientnet_b0": 32,  # but squeeze-excitations, of one pixel
    "timm/convnext_tiny": 3,  # the rest is depthwise or linear
}


@pytest.fixture
def build(torchvision_models, timm) -> Callable[[str], nn.Module]:
    def build(name: str) -> nn.Module:
        library, model = name.split("/")
        if library == "torchvision":
            return getattr(torchvision_models, model)(weights=None, num_classes=10)
        # by default a block's last batch norm starts at 0, which would hide whatever happens in the block
        options = {"zero_init_last": False} if model == "resnet50" else {}
        return timm.create_model(model, pretrained=False, num_classes=10, **options)

    return build


def with_statistics(model: nn.Module) -> nn.Module:
    """A pass in training mode, so that the batch norms know what they are given."""
    momenta = {m: m.momentum for m in model.modules() if isinstance(m, nn.BatchNorm2d)}
    for norm in momenta:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 64, 64))
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "replaced"), NETWORKS.items())
def test_network_computes_the_same_at_rate_0(build, name: str, replaced: int) -> None:
    model, x = with_statistics(build(name)), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(x)
        report = convert_(model, UNPRUNED)
        assert len(report.replaced) == len(list(dynamic_layers(model))) == replaced
        scale = expected.abs().max()
        assert (model(x) - expected).abs().max() < 1e-4 * scale
        set_pruning_rate(model, 0.75)
        assert (model(x) - expected).abs().max() > 1e-2 * scale  # the new layers do matter


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_network_trains_at_three_quarters(build, name: str) -> None:
    model = build(name).train()
    # DenseNet appends its new channels. While all saliencies tie the first ones are kept, so that most of its
    # layers would not yet be asked for anything; a random start asks for all.
    convert_(model, DGCConfig(pruning_rate=0.75, preserve="densenet" not in name))
    layers = dict(dynamic_layers(model))
    before = {key: layer.weight.detach().clone() for key, layer in layers.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = F.cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.tensor([0, 1]))
    loss.backward()
    optimizer.step()
    assert loss.isfinite()
    for key, layer in layers.items():
        kept, channels = int(layer.gate.keep), layer.in_channels
        assert kept == -(-channels // 4), key
        assert layer.weight.grad.abs().sum() > 0, key
        assert layer.generator.weight2.grad.abs().sum() > 0, key
        assert not torch.equal(layer.weight, before[key]), key


@pytest.mark.slow
def test_dense_checkpoint_loads(build) -> None:
    dense, model = build("torchvision/resnet18"), build("torchvision/resnet18")
    convert_(model)
    missing, unexpected = model.load_state_dict(dense.state_dict(), strict=False)
    assert not unexpected
    parts = ("generator.weight1", "generator.weight2", "generator.bias", "gate.keep")
    assert set(missing) == {f"{name}.{part}" for name, _ in dynamic_layers(model) for part in parts}
    for key, value in dense.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)


# --- one layer ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"stride": 2, "padding": 1},
        {"stride": (1, 2), "padding": (0, 2), "dilation": (2, 1)},
        {"padding": "valid"},
        {"padding": "same", "dilation": 2},
        {"kernel_size": (4, 3), "padding": "same"},
        {"kernel_size": 1, "stride": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("gate", ["head", "global"])
def test_layer_computes_the_same_at_rate_0(options: dict, gate: str) -> None:
    conv = nn.Conv2d(**({"in_channels": 8, "out_channels": 12, "kernel_size": 3} | options))
    x = torch.randn(2, 8, 9, 11)
    expected = conv(x)
    model = nn.Sequential(conv)
    convert_(model, DGCConfig(pruning_rate=0, gate=gate), everything)
    assert isinstance(model[0], DynamicGroupConv2d)
    torch.testing.assert_close(model(x), expected)


def test_layer_takes_over_the_parameters() -> None:
    conv = nn.Conv2d(8, 8, 3).double().eval()
    conv.bias.requires_grad_(False)
    model = nn.Sequential(conv)
    assert model.training
    convert_(model, filter_fn=everything)
    (layer,) = model
    assert layer.weight is conv.weight
    assert layer.bias is conv.bias
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert layer.weight.requires_grad
    assert not layer.bias.requires_grad
    assert layer.generator.weight1.requires_grad
    assert not any(module.training for module in layer.modules())
    assert model.training


def test_layer_stays_on_its_device() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, device="meta"))
    convert_(model, filter_fn=everything)
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}


@pytest.mark.parametrize("training", [True, False])
def test_layer_keeps_its_mode(training: bool) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3)).train(training)
    convert_(model, filter_fn=everything)
    assert {module.training for module in model.modules()} == {training}


def test_options_reach_the_layer() -> None:
    model = nn.Sequential(nn.Conv2d(32, 12, 3))
    rules = {"keep_rule": "round", "tie_rule": "drop", "preserve": False}
    config = DGCConfig(heads=3, pruning_rate=0.51, squeeze=4, halve_squeeze=False, **rules)
    convert_(model, config, everything)
    (layer,) = model
    assert (layer.heads, layer.pruning_rate, layer.generator.hidden) == (3, 0.51, 8)
    assert isinstance(layer.gate, HeadGate)
    assert (int(layer.gate.keep), layer.gate.keep_rule, layer.gate.tie_rule) == (16, "round", "drop")

    model = nn.Sequential(nn.Conv2d(32, 12, 3))
    convert_(model, DGCConfig(gate="global"), everything)
    assert isinstance(model[0].gate, GlobalGate)
    assert model[0].generator.hidden == 4


def test_preserve_starts_at_one_and_otherwise_at_random() -> None:
    x = torch.rand(2, 32, 5, 5)
    for preserve in (True, False):
        model = nn.Sequential(nn.Conv2d(32, 8, 3))
        convert_(model, DGCConfig(preserve=preserve), everything)
        assert bool((model[0].generator(x) == 1).all()) is preserve
        assert model[0].generator.weight1.std() > 0


# --- which ones ---


class Doubling(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Standardized(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean(), bias)


class Negating(nn.Conv2d):
    def __call__(self, x: Tensor) -> Tensor:
        return -super().__call__(x)


class Named(nn.Conv2d):
    """A subclass that changes nothing about the computation."""


class Scaled(nn.Conv2d):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("scale", torch.ones(1))


def patched() -> nn.Conv2d:
    conv = nn.Conv2d(8, 8, 3)
    conv.forward = lambda x: x
    return conv


def hooked(register: str) -> nn.Conv2d:
    conv = nn.Conv2d(8, 8, 3)
    getattr(conv, register)(lambda *args: None)
    return conv


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Conv2d(8, 8, 3, groups=8), "depthwise"),
        (lambda: nn.Conv2d(8, 8, 3, groups=2), "2 groups"),
        (lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), "padding_mode 'reflect'"),
        (lambda: nn.Conv2d(8, 10, 3), "4 heads do not divide 10 output channels"),
        (lambda: Doubling(8, 8, 3), "Doubling has its own forward, which does more than pad and convolve"),
        (lambda: Standardized(8, 8, 3), "Standardized has its own forward, which does more than pad and convolve"),
        (lambda: Negating(8, 8, 3), "Negating has its own forward, which does more than pad and convolve"),
        (
            lambda: StandardGroupConv2d(8, 8, 3),
            "StandardGroupConv2d has its own forward, which does more than pad and convolve",
        ),
        (lambda: DynamicGroupConv2d(8, 8, 3), "already dynamic"),
        (patched, "Conv2d has its own forward, which does more than pad and convolve"),
        (lambda: Scaled(8, 8, 3), "holds more than weight and bias"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3)), "parametrized"),
        (lambda: nn.utils.spectral_norm(nn.Conv2d(8, 8, 3)), "weight is a Tensor, not an nn.Parameter"),
        (lambda: nn.LazyConv2d(8, 3), "weight is a UninitializedParameter, not an nn.Parameter"),
        (lambda: nn.Conv2d(8, 8, 3, dtype=torch.complex64), "weight is torch.complex64"),
        (lambda: hooked("register_forward_hook"), "has hooks"),
        (lambda: hooked("register_forward_pre_hook"), "has hooks"),
        (lambda: hooked("register_full_backward_hook"), "has hooks"),
        (lambda: hooked("register_full_backward_pre_hook"), "has hooks"),
        (lambda: hooked("register_state_dict_post_hook"), "has hooks"),
        (lambda: hooked("register_state_dict_pre_hook"), "has hooks"),
        (lambda: hooked("register_load_state_dict_pre_hook"), "has hooks"),
        (lambda: hooked("register_load_state_dict_post_hook"), "has hooks"),
    ],
)
def test_left_with_the_reason(make: Callable[[], nn.Module], reason: str) -> None:
    assert only_reason(make()) == reason


class Port(nn.Conv2d):
    """As EfficientNet's usual port has it: a layer of its own pads."""

    def __init__(self, *sizes: int, pad: tuple[int, int, int, int], **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.static_padding = nn.ZeroPad2d(pad)

    def forward(self, x: Tensor) -> Tensor:
        x = self.static_padding(x)
        return nn.functional.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class DroppingWhileTraining(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


def same(sizes: tuple[int, ...], stride: int) -> nn.Conv2d:
    return import_library("timm").layers.Conv2dSame(*sizes, stride=stride)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Port(8, 16, 3, pad=(0, 1, 0, 1), stride=2),
        lambda: Port(8, 16, 5, pad=(1, 2, 2, 2), stride=2),
        lambda: Port(8, 16, 3, pad=(1, 1, 1, 1)),
        lambda: Port(8, 16, 1, pad=(0, 0, 0, 0), bias=False),
        lambda: Port(8, 16, 3, pad=(4, 4, 4, 4), dilation=4),
        lambda: same((8, 16, 3), 2),
        lambda: same((8, 16, 5), 1),
        lambda: same((8, 16, 3), 3),
    ],
)
@pytest.mark.parametrize("size", [(15, 16), (20, 13), (16, 16)])
def test_convolutions_that_only_pad_first_are_replaced(make, size: tuple[int, int]) -> None:
    model = nn.Sequential(make()).eval()
    x = torch.randn(2, 8, *size)
    expected = model(x)
    keys = set(model.state_dict())
    report = convert_(model, DGCConfig(pruning_rate=0), filter_fn=everything)
    assert [row.action for row in report.rows] == ["replaced"]
    assert keys <= set(model.state_dict())
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(deploy.prepare(model)(x), expected, atol=1e-5, rtol=1e-5)
    copied = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(copied(x), expected)


def test_other_layers_refuse_uneven_padding() -> None:
    model = nn.Sequential(Port(8, 16, 3, pad=(0, 1, 0, 1), stride=2), Port(8, 16, 3, pad=(1, 1, 1, 1)))
    report = convert_(model, partial(StandardGroupConv2d, groups=4), filter_fn=everything)
    assert [row.action for row in report.rows] == ["left", "replaced"]
    assert report.rows[0].reason == "Port pads unevenly, which a StandardGroupConv2d does not"


def test_what_drops_values_while_training_is_left() -> None:
    assert "has its own forward" in only_reason(DroppingWhileTraining(8, 8, 3))


def test_transposed_convolutions_and_shared_layers_are_told_of() -> None:
    conv = nn.Conv2d(8, 8, 3, padding=1)
    model = nn.Sequential(conv, nn.ConvTranspose2d(8, 8, 2, 2), conv, nn.Conv2d(8, 4, 1))
    x = torch.randn(1, 8, 6, 6)
    expected = model(x)
    report = convert_(model, DGCConfig(pruning_rate=0), filter_fn=everything)
    assert [(row.name, row.action, row.reason) for row in report.rows] == [
        ("0", "replaced", "shared, also 2"),
        ("1", "left", "transposed"),
        ("3", "replaced", ""),
    ]
    torch.testing.assert_close(model(x), expected)


def test_timms_own_convolutions_are_left(timm) -> None:
    layers = timm.layers
    assert (
        only_reason(layers.StdConv2d(8, 8, 3)) == "StdConv2d has its own forward, which does more than pad and convolve"
    )


def test_subclass_without_a_forward_is_replaced() -> None:
    model = nn.Sequential(Named(8, 8, 3))
    convert_(model, filter_fn=everything)
    assert isinstance(model[0], DynamicGroupConv2d)


def convs(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Conv2d(8, 8, 3) for _ in range(count)))


def kinds(model: nn.Module) -> list[type[nn.Module]]:
    return [type(module) for module in model.children()]


def test_first_convolution_is_left_by_default() -> None:
    model = nn.Sequential(nn.BatchNorm2d(8), *convs(3))
    report = convert_(model)
    assert kinds(model) == [nn.BatchNorm2d, nn.Conv2d, DynamicGroupConv2d, DynamicGroupConv2d]
    assert [(row.name, row.reason) for row in report.left] == [("1", "first conv")]


def test_an_ineligible_first_convolution_protects_no_other() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), *convs(1))
    convert_(model)
    assert kinds(model) == [nn.Conv2d, DynamicGroupConv2d]


def test_converting_again_changes_nothing() -> None:
    model = nn.Sequential(*convs(3))
    convert_(model, filter_fn=lambda name, conv: name == "0")
    convert_(model)  # the first is dynamic already, and the second does not become the first
    layers = list(model)
    assert kinds(model) == [DynamicGroupConv2d] * 3
    report = convert_(model)
    assert all(new is old for new, old in zip(model, layers, strict=True))
    assert [row.reason for row in report.rows] == ["already dynamic"] * 3


def test_filter_decides_among_the_eligible() -> None:
    model = nn.Sequential(*convs(2), nn.Conv2d(8, 8, 3, groups=8), *convs(1))
    first, second, _, last = model
    asked = []

    def choose(name: str, conv: nn.Conv2d) -> bool:
        asked.append((name, conv))
        return name != "1"

    report = convert_(model, filter_fn=choose)
    assert asked == [("0", first), ("1", second), ("3", last)]
    assert kinds(model) == [DynamicGroupConv2d, nn.Conv2d, nn.Conv2d, DynamicGroupConv2d]
    assert [row.reason for row in report.rows] == ["", "filter_fn", "depthwise", ""]


def test_a_failing_filter_leaves_the_model_whole() -> None:
    model = convs(3)

    def fail(name: str, conv: nn.Conv2d) -> bool:
        if name == "2":
            raise KeyError(name)
        return True

    with pytest.raises(KeyError):
        convert_(model, filter_fn=fail)
    assert kinds(model) == [nn.Conv2d] * 3


def test_shared_convolution_becomes_one_shared_layer() -> None:
    conv = nn.Conv2d(8, 8, 3)
    model = nn.ModuleDict({"a": nn.Sequential(conv, nn.ReLU(), conv), "b": nn.Sequential(conv)})
    report = convert_(model, filter_fn=everything)
    layer = model["a"][0]
    assert isinstance(layer, DynamicGroupConv2d)
    assert layer is model["a"][2]
    assert layer is model["b"][0]
    (row,) = report.rows
    assert (row.name, row.action, row.reason) == ("a.0", "replaced", "shared, also a.2, b.0")
    assert [name for name, _ in dynamic_layers(model)] == ["a.0"]


def test_shared_convolution_that_is_left_says_both() -> None:
    conv = nn.Conv2d(8, 8, 3, groups=8)
    assert convert_(nn.Sequential(conv, conv)).left[0].reason == "depthwise; shared, also 1"


def test_tied_weights_stay_tied() -> None:
    model = convs(2)
    model[1].weight = model[0].weight
    convert_(model, filter_fn=everything)
    assert model[0] is not model[1]
    assert model[0].weight is model[1].weight


def test_converted_model_can_be_copied() -> None:
    model, x = convs(2), torch.randn(1, 8, 7, 7)
    convert_(model, filter_fn=everything)
    assert torch.equal(copy.deepcopy(model)(x), model(x))


# --- other layers ---


@pytest.mark.parametrize("kind", [LearnedGroupConv2d, FullyLearnableGroupConv2d, ChannelGatingConv2d])
def test_other_methods_take_over_the_parameters(kind: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3, 2, padding=1).eval())
    weight, bias = model[1].weight, model[1].bias
    report = convert_(model, kind)
    assert [row.action for row in report.rows] == ["left", "replaced"]
    layer = model[1]
    assert type(layer) is kind
    assert layer.weight is weight
    assert layer.bias is bias
    assert (layer.stride, layer.padding) == ((2, 2), (1, 1))
    assert not layer.training
    assert convert_(model, kind).rows[1].reason == f"already a {kind.__name__}"


def test_learned_groups_start_as_the_network_was(build) -> None:
    model, x = with_statistics(build("torchvision/resnet18")), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(x)
        assert len(convert_(model, partial(LearnedGroupConv2d, groups=8)).replaced) == 19
        assert model.layer1[0].conv1.groups == 8
        torch.testing.assert_close(model(x), expected)


def test_standard_groups_have_weights_of_their_own() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 10, 3))
    report = convert_(model, partial(StandardGroupConv2d, groups=4), everything)
    assert model[0].weight.shape == (8, 2, 3, 3)
    assert "4 groups, 8 input and 10 output" in report.rows[1].reason


def test_a_layer_of_your_own_around_a_convolution() -> None:
    class Clamped(nn.Module):
        def __init__(self, in_channels: int, out_channels: int, kernel_size: object, **options: object) -> None:
            super().__init__()
            self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, **options)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).clamp(-0.1, 0.1)

    model = convs(2)
    assert len(convert_(model, Clamped).replaced) == 1
    assert model(torch.randn(1, 8, 9, 9)).abs().max() <= 0.1


def test_a_layer_that_normalizes_is_not_put_before_a_batch_norm() -> None:
    report = convert_(convs(2), FeatureBoostingConv2d)
    assert "holds the batch norm" in report.rows[1].reason


# --- the report ---


def test_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    model = nn.Sequential(nn.Conv2d(3, 8, 7), nn.Sequential(nn.Conv2d(8, 16, (1, 3))), nn.Conv2d(16, 10, 1))
    report = convert_(model)
    first, middle, last = report.rows
    assert (first.name, first.action, first.reason) == ("0", "left", "first conv")
    assert (middle.name, middle.action, middle.reason) == ("1.0", "replaced", "")
    assert (middle.in_channels, middle.out_channels, middle.kernel_size) == (8, 16, (1, 3))
    assert (last.name, last.action) == ("2", "left")
    assert report.replaced == [middle]
    assert report.left == [first, last]
    assert report.summary == "replaced 1 of 3 convolutions, left 2"

    lines = str(report).splitlines()
    assert lines[-1] == report.summary
    (line,) = (line for line in lines if "1.0" in line)
    for cell in ("replaced", "8 -> 16", "1x3"):
        assert cell in line
    assert any("10 output channels" in line for line in lines)
    assert "Warning" not in str(report)


def test_report_prints_with_rich() -> None:
    report = convert_(convs(2))
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(report)
    assert report.summary in console.export_text()


def test_report_shows_brackets_as_they_are() -> None:
    model = nn.ModuleDict({"[bold]x[/bold]": nn.Conv2d(8, 8, 3)})
    assert "[bold]x[/bold]" in str(convert_(model))


def test_report_warns_when_nothing_was_replaced() -> None:
    report = convert_(convs(1))
    assert not report.replaced
    assert "Warning: nothing was replaced" in str(report)


# --- wrong use ---


def test_model_without_convolutions() -> None:
    with pytest.raises(UserError, match=r"Linear has no nn\.Conv2d"):
        convert_(nn.Linear(3, 3))


def test_model_that_is_a_convolution() -> None:
    with pytest.raises(UserError, match=r"nn\.Sequential\(conv\)"):
        convert_(nn.Conv2d(8, 8, 3))


def test_model_or_filter_of_another_kind() -> None:
    with pytest.raises(UserError, match=r"takes an nn\.Module, got a list"):
        convert_([nn.Conv2d(8, 8, 3)])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a function of a name and a convolution, got 'layer1'"):
        convert_(convs(2), filter_fn="layer1")  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [{"heads": 4}, {}, DGCConfig, 4])
def test_config_that_is_none(config: object) -> None:
    with pytest.raises(UserError, match=r"a DGCConfig, as DGCConfig\(heads=4\), or a layer"):
        convert_(nn.Sequential(nn.Conv2d(8, 8, 3)), config)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("heads", 0),
        ("heads", 2.0),
        ("pruning_rate", 1.0),
        ("pruning_rate", -0.1),
        ("pruning_rate", float("nan")),
        ("pruning_rate", "0.5"),
        ("squeeze", 0),
        ("squeeze", 1.5),
        ("gate", "tail"),
        ("keep_rule", "floor"),
        ("tie_rule", "highest_index"),
    ],
)
def test_bad_option(option: str, value: object) -> None:
    with pytest.raises(UserError, match=option):
        DGCConfig(**{option: value})


def test_dropping_ties_where_all_tie() -> None:
    with pytest.raises(UserError, match="preserve=False"):
        DGCConfig(tie_rule="drop")
    for config in (DGCConfig(tie_rule="drop", preserve=False), DGCConfig(tie_rule="drop", pruning_rate=0)):
        model = nn.Sequential(nn.Conv2d(32, 8, 3, bias=False))
        convert_(model, config, everything)
        assert model(torch.rand(2, 32, 5, 5)).abs().sum() > 0
    DGCConfig(tie_rule="drop", gate="global")  # which has no ties


# --- select ---


def test_set_pruning_rate_sets_every_layer() -> None:
    model = convs(3)
    convert_(model)
    set_pruning_rate(model, 0.5)
    layers = [layer for _, layer in dynamic_layers(model)]
    assert [(layer.pruning_rate, int(layer.gate.keep)) for layer in layers] == [(0.5, 4)] * 2


@pytest.mark.parametrize("rate", [1.0, -0.5, "0.5"])
def test_set_pruning_rate_refuses(rate: float) -> None:
    model = convs(2)
    convert_(model)
    with pytest.raises(UserError, match="pruning_rate"):
        set_pruning_rate(model, rate)
    assert model[1].pruning_rate == 0.75


def test_set_pruning_rate_without_dynamic_layers() -> None:
    with pytest.raises(UserError, match="no DynamicGroupConv2d"):
        set_pruning_rate(convs(2), 0.5)


def test_dynamic_layers() -> None:
    model = nn.Sequential(*convs(2), nn.Sequential(nn.Conv2d(8, 8, 3)))
    convert_(model)
    assert list(dynamic_layers(model)) == [("1", model[1]), ("2.0", model[2][0])]


class SqueezeExcite(nn.Module):
    """A convolution, and a gate of two on one pixel."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 96, 3), nn.Conv2d(96, 96, 3)
        self.reduce, self.expand = nn.Conv2d(96, 4, 1), nn.Conv2d(4, 96, 1)

    def forward(self, x):
        x = self.conv(self.stem(x))
        return x * self.expand(self.reduce(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


def test_what_choosing_would_make_dearer_is_left():
    model = SqueezeExcite().eval()
    before = count_macs(model, (3, 16, 16))
    report = convert_(model, input_size=(3, 16, 16))
    assert [row.name for row in report.replaced] == ["conv"]
    reasons = {row.name: row.reason for row in report.left}
    assert reasons["reduce"] == reasons["expand"] == "it computes one pixel: to choose takes longer than to compute"
    few = convert_(nn.Sequential(nn.Conv2d(3, 96, 1), nn.Conv2d(96, 4, 1)), input_size=(3, 2, 1))
    assert few.left[-1].reason == "choosing costs more than it saves: 768 MACs would become 5,976"
    after = count_macs(model, (3, 16, 16))
    assert after.macs < before.macs
    assert "reduce" in [row.name for row in convert_(SqueezeExcite()).replaced], "where no size is known"
    unpruned = convert_(SqueezeExcite(), DGCConfig(pruning_rate=0), input_size=(3, 16, 16))
    assert "conv" in [row.name for row in unpruned.replaced]
    with pytest.raises(UserError, match="does not take images of 1 x 16 x 16"):
        convert_(SqueezeExcite(), input_size=(1, 16, 16))


def test_networks_that_tell_their_size_need_not_be_told():
    model = SqueezeExcite()
    model.pretrained_cfg = {"input_size": (3, 32, 32)}
    assert "reduce" in [row.name for row in convert_(model).left]


def test_a_filter_may_say_why():
    report = convert_(SqueezeExcite(), filter_fn=lambda name, conv: True if name == "conv" else "too slow")
    assert {row.name: row.reason for row in report.rows} == {"conv": ""} | dict.fromkeys(
        ("stem", "reduce", "expand"), "too slow"
    )


def test_an_optimizer_that_lacks_the_generators_is_told(caplog):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    convert_(model)
    assert not caplog.text
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    convert_(model)
    assert "an optimizer (Adam) was made before convert_" in caplog.text
    del optimizer, other
