"""The counter against sums by hand, and against every figure of the paper it can be held to."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dgconv import DynamicGroupConv2d, count_macs, create_model, deploy, dynamic_group_conv2d
from dgconv.cost import needs_images, register_rule, rules
from dgconv.errors import UserError
from dgconv.layers import (
    ChannelGatingConv2d,
    FeatureBoostingConv2d,
    FullyLearnableGroupConv2d,
    LearnedGroupConv2d,
    LowCostCollaborativeConv2d,
    MethodLayer,
    StandardGroupConv2d,
    halve_classifier,
    to_static_,
)
from dgconv.layers.gate import Gate
from dgconv.layers.method import layer_methods


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


@pytest.mark.parametrize("convention", ["paper", "authors"])
@pytest.mark.parametrize("method", layer_methods())
def test_undivided_every_method_costs_what_the_dense_network_costs(method, convention):
    dense = count_macs(create_model("condensenet20"), convention=convention).macs
    assert count_macs(create_model(f"condensenet20_{method}".rstrip("_")), convention=convention).dense_macs == dense


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
    "MobileNetV1": ("paper", "568.74"),
    "ShuffleNet, group 3, 2x": ("paper", "524.05"),
    "NASNet-A (N=4)": ("paper", "563.64"),
    "IGCV3-D": ("authors", "317.94"),
    "VGG-16, Li 2016": ("paper", "206.1"),
    "ResNet-110, Li 2016": ("paper", "213.0"),
}
FURTHER_OFF = {  # in percent, of rows that say why
    "FPGM, rate 0.3": 13,
    "ResNet-18-DGC, rate 0.75, as in the text": 62,
    "ResNet-18-DGC, rate 0.75, shortcuts dense": 58,
    "MobileNetV2-DGC, rate 0.75, d = 16": 9,
    "MobileNetV2-DGC-1, CIFAR, d = 16": 2,
    "CondenseNet-86 LGC, C = 4": 1.3,
    "ResNet-56, Li 2016": 1.4,  # 90.9M in its paper, and 90M in this one
}


@pytest.fixture(scope="module")
def comparison(counted_paper):
    return {row.label: row for row in counted_paper}


@pytest.mark.slow
@pytest.mark.parametrize("label", PUBLISHED)
def test_published_figures(comparison, label):
    convention, figure = PUBLISHED[label]
    digits = len(figure.partition(".")[2])
    assert f"{getattr(comparison[label], convention):.{digits}f}" == figure


@pytest.mark.slow
def test_every_row_is_within_one_percent_or_says_why_not(comparison):
    reported = {label: row for label, row in comparison.items() if row.difference is not None}
    assert {row.where for row in comparison.values()} >= {"Table 1", "Table 2", "Table 3"}
    off = {label: row.difference for label, row in reported.items() if abs(row.difference) > 1}
    assert off.keys() == FURTHER_OFF.keys()
    assert all(abs(off[label]) < most for label, most in FURTHER_OFF.items())


@pytest.mark.slow
def test_published_saving(comparison):
    row = comparison["ResNet-18-DGC, rate 0.55"]
    assert f"{row.authors_saving:.3f} {row.paper_saving:.3f}" == "2.042 2.046"
    assert row.difference == pytest.approx(100 * (row.authors_saving / 2.04 - 1))


@pytest.mark.parametrize(
    ("name", "options", "halve", "figure"),
    [
        ("condensenet86_lgc", {"condensation": 4}, False, "65.82"),
        ("condensenet50_lgc", {"condensation": 1}, False, "66.39"),
        ("condensenet74_lgc", {"condensation": 4}, True, "529.33"),
    ],
)
def test_published_figures_of_condensed_networks(name, options, halve, figure):
    """Before they are condensed by their options, afterwards by what they are, as masks and as static networks."""
    model = create_model(name, **options)
    images = torch.zeros(1, *model.input_size)
    if halve:
        halve_classifier(model)

    def millions(**given):
        return f"{count_macs(model, convention='authors', **given).macs / 1e6:.2f}"

    assert millions() == figure
    for layer in model.modules():
        if isinstance(layer, MethodLayer):
            layer.before_step(1)
    assert millions(images=images) == figure
    to_static_(model)
    assert millions() == figure


# --- the other methods, on one layer of 8 inputs and 12 outputs, 3x3, 10x10 pixels ---

DENSE = 9 * 8 * 12 * 100


def cost(layer, x=None, convention="paper"):
    (row,) = count_macs(nn.Sequential(layer), (8, 10, 10), convention, images=x).layers
    assert row.dense_macs == DENSE
    assert row.kind == type(layer).__name__
    return row


def test_learned_groups():
    layer = LearnedGroupConv2d(8, 12, 3, padding=1, groups=4, condensation=4)
    x = torch.randn(2, 8, 10, 10)
    assert cost(layer).macs == DENSE / 4
    assert cost(layer, x).macs == DENSE
    layer.before_step(0.2)
    assert (cost(layer, x).macs, cost(layer, x).kept_share) == (DENSE * 6 / 8, 6 / 8)
    assert not needs_images(layer)


@pytest.mark.parametrize("condensation", [2, 4, 8])
def test_learned_groups_made_static_save_as_much(condensation):
    """Whatever the number of groups: four that keep half of the inputs each pick twice as many as there are."""
    layer = LearnedGroupConv2d(8, 12, 3, padding=1, groups=4, condensation=condensation)
    layer.before_step(1)
    row = cost(layer.to_static())
    assert (row.macs, row.kept_share) == (DENSE / condensation, 1 / condensation)


def test_fully_learnable_groups_of_unequal_size():
    layer = FullyLearnableGroupConv2d(8, 12, 3, padding=1, groups=3)
    sizes = [(len(inputs), len(outputs)) for inputs, outputs in layer.members()]
    expected = sum(i * o for i, o in sizes) * 9 * 100
    assert cost(layer).macs == cost(layer, torch.randn(2, 8, 10, 10)).macs == pytest.approx(expected)
    assert expected != pytest.approx(DENSE / 3, rel=1e-3)
    model = nn.Sequential(layer)
    to_static_(model)
    assert count_macs(model, (8, 10, 10)).macs == expected


def test_boosted_features():
    layer = FeatureBoostingConv2d(8, 12, 3, padding=1, density=0.5)
    generator = 8 * 12
    assert cost(layer).macs == DENSE / 2 + generator
    assert cost(layer, convention="authors").macs == DENSE / 2 + generator + 8 * 100 + 3 * 12
    x = torch.randn(2, 8, 10, 10)
    assert cost(layer, x).macs == pytest.approx(DENSE / 2 + generator)
    x[0, :4] = 0  # half of one image's channels, a quarter of all
    x[:, 5, :5] = 0  # not the whole channel
    assert cost(layer, x).macs == pytest.approx(DENSE * 3 / 4 / 2 + generator)
    layer.generator.bias.data[2:] = -100.0  # two saliencies are left, the other winners are zeros
    assert cost(layer, x).macs == pytest.approx(DENSE * 3 / 4 * 2 / 12 + generator)
    assert needs_images(layer)


def test_gated_channels():
    layer = ChannelGatingConv2d(8, 12, 3, padding=1, base_share=0.25, target=0.0)
    assert cost(layer).macs == DENSE * (1 / 4 + 3 / 4 * 0.5)
    above = ChannelGatingConv2d(8, 12, 3, padding=1, base_share=0.25, target=1.0)
    assert cost(above).macs == pytest.approx(DENSE * (1 / 4 + 3 / 4 * 0.1587), rel=1e-3)
    x = torch.randn(2, 8, 10, 10)
    with torch.no_grad():
        opened = (layer.eval()(x) != layer.base_path(x)).float().mean().item()
        assert 0.2 < opened < 0.8
        assert cost(layer, x).macs == pytest.approx(DENSE * (1 / 4 + 3 / 4 * opened))
        layer.threshold.fill_(1e6)
    assert cost(layer, x).macs == DENSE / 4
    assert needs_images(layer)


def test_low_cost_collaboration():
    layer = LowCostCollaborativeConv2d(8, 12, 3, padding=1, open_share=0.4)
    assert cost(layer).macs == pytest.approx(DENSE * (1 / 9 + 0.4))
    x = torch.randn(2, 8, 10, 10)
    with torch.no_grad():
        opened = (layer.eval()(x) != 0).float().mean().item()
    assert 0.1 < opened < 0.9
    assert cost(layer, x).macs == pytest.approx(DENSE * (1 / 9 + opened))
    assert needs_images(layer)
    plain = LowCostCollaborativeConv2d(8, 12, 1)
    assert count_macs(plain, (8, 10, 10)).macs == DENSE / 9


def test_a_method_on_a_grouped_convolution_costs_its_share_of_that_one():
    boosted = count_macs(FeatureBoostingConv2d(8, 12, 3, padding=1, groups=2, density=0.5), (8, 10, 10))
    assert (boosted.macs, boosted.dense_macs) == (DENSE / 2 / 2 + 8 * 12, DENSE / 2)
    collaborating = LowCostCollaborativeConv2d(8, 12, 3, padding=1, groups=4, open_share=0.4)
    assert count_macs(collaborating, (8, 10, 10)).macs == pytest.approx(DENSE / 4 * (1 / 9 + 0.4))
    assert count_macs(LowCostCollaborativeConv2d(8, 12, 1, groups=2), (8, 10, 10)).macs == DENSE / 9 / 2
    grouped = count_macs(StandardGroupConv2d(8, 12, 3, padding=1, groups=2), (8, 10, 10))
    assert (grouped.macs, grouped.dense_macs) == (DENSE / 2, DENSE), "it is the method that divides"


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


class KeepThree(Gate):
    def mask(self, saliency):
        return torch.arange(saliency.shape[-1]).expand_as(saliency) < 3


def test_a_gate_of_your_own_is_measured_on_images():
    layer = DynamicGroupConv2d(8, 8, 1, pruning_rate=0.5)
    layer.gate = KeepThree()
    assert needs_images(layer)
    (cost,) = count_macs(layer, images=torch.randn(2, 8, 5, 5)).layers
    assert cost.kept_share == 3 / 8
    assert count_macs(layer, (8, 5, 5)).layers[0].kept_share == 0.5  # without any, what it is meant to keep


class OneLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x.mean((2, 3))).unflatten(1, (4, 8))


def test_a_generator_of_your_own_costs_its_weights():
    layer = DynamicGroupConv2d(8, 8, 1, heads=4, pruning_rate=0.5)
    layer.generator = OneLinear(8, 32)
    assert count_macs(layer, (8, 5, 5)).macs == 0.5 * 8 * 8 * 25 + 8 * 32


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


class Unusual(nn.Module):
    """A convolution and a product in its own forward, a layer used twice, one called by keyword, a dictionary."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.weight = nn.Parameter(torch.randn(8, 8, 3, 3))
        self.twice = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.again = nn.Sequential(self.twice)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, x):
        x = F.conv2d(self.first(input=x), self.weight)
        x = self.up(self.again(self.twice(x)))
        return {"product": x @ x.mT}


@pytest.mark.parametrize("convention", ["paper", "authors"])
@pytest.mark.parametrize("batch", [1, 3])
def test_counts_what_is_no_layer(convention, batch):
    model = Unusual()
    images = torch.randn(batch, 3, 16, 16)
    count = count_macs(model, convention=convention, images=images)
    expected = {
        "first": 27 * 8 * 14 * 14,
        "": 72 * 8 * 12 * 12 + 4 * 24 * 24 * 24,  # F.conv2d and the product
        "twice": 2 * 36 * 8 * 12 * 12,
        "up": 8 * 4 * 4 * 12 * 12,
    }
    assert {name: sum(layer.macs for layer in count.layers if layer.name == name) for name in expected} == expected
    assert count.macs == count.dense_macs == sum(expected.values())
    assert not count.uncounted


def test_counts_all_that_one_module_computes():
    class TwoProducts(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Parameter(torch.randn(6, 2)), nn.Parameter(torch.randn(2, 5))

        def forward(self, x):
            return x @ self.down @ self.up

    [layer] = count_macs(nn.Sequential(TwoProducts()), (6,)).layers
    assert layer.macs == layer.dense_macs == 6 * 2 + 2 * 5


def test_counts_our_own_operation_outside_of_a_layer():
    class Undivided(nn.Module):
        def forward(self, x):
            return dynamic_group_conv2d(x, torch.ones(8, 3, 3, 3), torch.ones(len(x), 2, 3), padding=1)

    assert count_macs(nn.Sequential(Undivided()), (3, 8, 8)).macs == 8 * 3 * 9 * 64


def test_counts_attention():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x):
            tokens = x.flatten(2).mT
            return self.attention(tokens, tokens, tokens)[0]

    tokens = 5 * 5
    assert count_macs(Attending(), (16, 5, 5)).macs == 4 * tokens * 16 * 16 + 2 * tokens * tokens * 16


def test_says_what_it_could_not_count():
    model = nn.Sequential(nn.PReLU(3), nn.BatchNorm2d(3))
    assert count_macs(model, (3, 8, 8)).uncounted == ["PReLU"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's quantization
def test_says_that_it_does_not_count_quantized_layers():
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Flatten(), nn.Linear(48, 4)), {nn.Linear})
    assert count_macs(model, (3, 4, 4)).uncounted == ["Linear"]


@pytest.mark.parametrize("name", ["resnet20_dgc", "resnet20_fbs"])
def test_without_values(name):
    model = create_model(name, width=8)
    costs = count_macs(model, (3, 8, 8))
    assert count_macs(model.to("meta"), (3, 8, 8)) == costs


def test_wrong_use():
    with pytest.raises(UserError, match="needs input_size"):
        count_macs(nn.Conv2d(3, 4, 1))
    with pytest.raises(UserError, match="got 'mine'"):
        count_macs(create_model("resnet20"), convention="mine")
    for size in (64, (3, -1, 8), (3, 8.0, 8)):
        with pytest.raises(UserError, match="whole numbers above 0"):
            count_macs(nn.Conv2d(3, 4, 1), size)
    with pytest.raises(UserError, match="empty batch"):
        count_macs(nn.Conv2d(3, 4, 1), images=torch.zeros(0, 3, 8, 8))
    prepared = deploy.prepare(nn.Sequential(nn.Conv2d(3, 4, 1)).eval())
    for model in (prepared, nn.Sequential(prepared, nn.Conv2d(4, 4, 1))):
        with pytest.raises(UserError, match="that it was prepared from"):
            count_macs(model, (3, 8, 8))
    with pytest.raises(UserError, match="the model that it was made from"):
        count_macs(torch.jit.trace(nn.Conv2d(3, 4, 1), torch.zeros(1, 3, 8, 8)), (3, 8, 8))
    with pytest.raises(UserError, match="got a str"):
        count_macs("resnet20")


@pytest.mark.parametrize("convention", ["paper", "authors"])
def test_a_gate_that_was_moved_is_charged_for_what_it_keeps(convention):
    layer = DynamicGroupConv2d(10, 8, 1, pruning_rate=0.55)
    layer.gate.keep.fill_(9)
    [cost] = count_macs(layer, (10, 4, 4), convention).layers
    assert cost.kept_share == 0.9


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)])
def test_the_authors_count_each_element_of_an_activation_or_global_pooling(layer):
    model = nn.Sequential(layer)
    assert [count_macs(model, (3, 4, 5), convention).macs for convention in ("paper", "authors")] == [0, 3 * 4 * 5]


def test_a_layer_derived_from_one_with_a_rule_is_counted_by_that_rule():
    class Derived(DynamicGroupConv2d):
        pass

    assert count_macs(Derived(8, 12, 3), (8, 10, 10)).macs == count_macs(DynamicGroupConv2d(8, 12, 3), (8, 10, 10)).macs


class StandardizedConv2d(nn.Conv2d):
    """Other weights, and another convolution than its own."""

    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)


class PaddedConv2d(nn.Conv2d):
    """The same convolution, of a larger image."""

    def forward(self, x):
        return super().forward(F.pad(x, (1, 1, 1, 1)))


def test_a_convolution_with_a_forward_of_its_own_needs_a_rule_unless_it_is_one_convolution(monkeypatch):
    """It may skip work that torch's formulas would not see."""
    monkeypatch.setattr(rules, "_RULES", {})
    assert count_macs(nn.Sequential(PaddedConv2d(8, 12, 3)), (8, 10, 10)).macs == DENSE
    model = nn.Sequential(nn.ReLU(), StandardizedConv2d(8, 12, 3, padding=1))
    with pytest.raises(UserError, match=r"^1 is a StandardizedConv2d.*register_rule"):
        count_macs(model, (8, 10, 10))
    register_rule(StandardizedConv2d, lambda layer, call: (0.25, 7))
    (row,) = count_macs(model, (8, 10, 10)).layers
    assert (row.macs, row.dense_macs, row.kept_share) == (DENSE / 4 + 7, DENSE, 0.25)


@pytest.mark.parametrize(("keep_rule", "kept"), [("ceil", 116), ("round", 115)])
def test_the_authors_charge_for_the_fraction_whatever_the_keep_rule(keep_rule, kept):
    layer = DynamicGroupConv2d(256, 8, 1, pruning_rate=0.55, keep_rule=keep_rule)
    shares = [count_macs(layer, (256, 4, 4), convention).layers[0].kept_share for convention in ("paper", "authors")]
    assert shares == pytest.approx([kept / 256, 0.45], abs=1e-9)


def test_the_size_given_goes_before_the_models_own():
    model = create_model("resnet20", width=4)
    assert count_macs(model, (3, 16, 16)).input_size == (3, 16, 16)
    assert count_macs(model, (3, 16, 16)).macs < count_macs(model).macs


def test_a_linear_layer_without_a_bias_and_the_fast_path_of_attention():
    assert torch.backends.mha.get_fastpath_enabled()
    assert count_macs(nn.Sequential(nn.Linear(4, 3, bias=False)), (4,), "authors").macs == 4 * 3
    assert torch.backends.mha.get_fastpath_enabled(), "on again"
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        count_macs(nn.Sequential(nn.Linear(4, 3)), (4,))
        assert not torch.backends.mha.get_fastpath_enabled(), "off as before"
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
