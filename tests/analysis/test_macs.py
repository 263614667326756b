"""The counter against sums by hand, and against every figure of the paper it can be held to."""

import pytest
import torch
from torch import nn

from dgconv import DynamicGroupConv2d, count_macs, create_model
from dgconv.analysis.paper import compare_with_paper
from dgconv.errors import UserError


def test_by_hand():
    layer = DynamicGroupConv2d(32, 64, 3, padding=1, heads=4, pruning_rate=0.7, squeeze=16)
    model = nn.Sequential(
        layer, nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5)
    )
    dense, hidden = 9 * 32 * 64 * 10 * 10, 4
    generator = 4 * 2 * 32 * hidden
    paper = count_macs(model, (32, 10, 10))
    assert paper.macs == pytest.approx(dense * 10 / 32 + generator + 64 * 5)
    assert paper.dense_macs == dense + 64 * 5
    authors = count_macs(model, (32, 10, 10), "authors")
    extras = 32 * 100 + 4 * (hidden + 3 * 32) + 64 * 100 + 64 * 25 * 9 + 64 * 25 + 5
    assert authors.macs == pytest.approx(dense * 0.3 + generator + extras + 64 * 5)


# label: reported figures that must come out to the digits given, by convention
PUBLISHED = {
    "CondenseNet-50-DGC, rate 1/3": ("authors", "50.994"),
    "CondenseNet-50 LGC, C = 1 (undivided)": ("authors", "66.39"),
    "CondenseNet-86-DGC, rate 3/4": ("authors", "71.037"),
    "CondenseNet-86-DGC, CIFAR-100": ("authors", "71.109"),
    "CondenseNet-86 LGC, C = 4": ("authors", "65.82"),
    "CondenseNet-74 LGC, half classifier": ("authors", "529.3"),
    "CondenseNet-74-DGC, rate 3/4": ("authors", "549.274"),
    "ResNet-18-DGC, rate 0.55": ("authors", "890.397"),
    "ResNet-18-DGC, rate 0.75, as in the text": ("authors", "551.287"),
    "MobileNetV2-DGC, rate 0.55, d = 4": ("paper", "245.12"),
    "MobileNetV2-DGC-1, CIFAR, d = 4": ("paper", "155.19"),
}


@pytest.fixture(scope="module")
def comparison():
    return {row.label: row for row in compare_with_paper()}


@pytest.mark.parametrize("label", PUBLISHED)
def test_published_figures(comparison, label):
    convention, figure = PUBLISHED[label]
    digits = len(figure.partition(".")[2])
    assert f"{getattr(comparison[label], convention):.{digits}f}" == figure


def test_published_saving(comparison):
    row = comparison["ResNet-18-DGC, rate 0.55"]
    assert f"{row.authors_saving:.3f} {row.paper_saving:.3f}" == "2.042 2.046"
    assert row.difference == pytest.approx(100 * (row.authors_saving / 2.04 - 1))


def test_count_follows_the_gate():
    model = create_model("condensenet20_dgc")
    full, target = (count_macs(model) for _ in range(2))
    for layer in model.modules():
        if isinstance(layer, DynamicGroupConv2d):
            layer.gate.set_rate(0)
    full = count_macs(model)
    assert target.macs < full.macs
    generators = sum(
        4 * 2 * m.in_channels * m.generator.hidden for m in model.modules() if isinstance(m, DynamicGroupConv2d)
    )
    assert full.macs == full.dense_macs + generators


def test_global_gate_is_measured_on_images():
    model = create_model("condensenet20_dgcg", pruning_rate=0.75)
    images = torch.randn(6, 3, 32, 32)
    model(images)  # batch statistics
    nominal, open_gates = count_macs(model), count_macs(model, images=images)
    assert not nominal.measured
    assert open_gates.measured
    assert all(layer.kept_share == 1 for layer in open_gates.layers if layer.kept_share is not None)
    for layer in model.modules():
        if isinstance(layer, DynamicGroupConv2d):
            layer.gate.threshold.fill_(1e9)
    closed = count_macs(model, images=images)
    assert closed.macs < nominal.macs < open_gates.macs


def test_leaves_the_model_as_it_was():
    model = create_model("resnet20_dgc")
    model.layer1.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    count_macs(model)
    assert model.training
    assert not model.layer1.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_says_what_it_could_not_count():
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4))
    assert count_macs(model, (3, 8, 8)).uncounted == ["ConvTranspose2d"]


def test_wrong_use():
    with pytest.raises(UserError, match="needs input_size"):
        count_macs(nn.Conv2d(3, 4, 1))
    with pytest.raises(UserError, match="got 'mine'"):
        count_macs(create_model("resnet20"), convention="mine")
