"""Every registered model: registering one tests it."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from small_models import SMALL, images_for, names_with, small_model

from dgconv import DynamicGroupConv2d, StandardGroupConv2d, create_model, dynamic_layers, list_models
from dgconv.cost import count_macs
from dgconv.errors import UserError
from dgconv.models import _registry, register_backbone
from dgconv.pruning import pruning_of

# The rivals' layers are on three of the backbones in small, in tests/layers/test_methods.py
NAMES = names_with("", "sgc", "dgc", "dgcg")
RIVALS = ("lgc", "flgc", "fbs", "cgnet", "lccn")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_forward_backward_and_head(name):
    model = small_model(name)
    x = images_for(model, 2)
    features = model.forward_features(x)
    assert features.shape[:2] == (2, model.num_features)
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
    logits = model.forward_head(features)
    assert logits.shape == (2, 7)
    F.cross_entropy(logits, torch.tensor([1, 2])).backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not without

    model.reset_classifier(3)
    assert model(x).shape == (2, 3)
    assert model.num_classes == 3
    model.reset_classifier(0)
    assert model(x).shape == (2, model.num_features)


@pytest.mark.slow
@pytest.mark.parametrize("backbone", SMALL)
def test_every_method_goes_into_every_network(backbone):
    """Without numbers: that the layers fit."""
    for method in RIVALS:
        with torch.device("meta"):
            model = small_model(f"{backbone}_{method}").eval()
        assert model(images_for(model, 1).to("meta")).shape == (1, 7)


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["resnet20", "condensenet20", "mobilenetv2", *SMALL])
def test_at_rate_0_with_saliencies_of_1_it_is_the_dense_network(backbone):
    model = small_model(f"{backbone}_dgc", pruning_rate=0).eval()
    undivided = {"groups": 1} if backbone in ("shufflenet", "igcv3") else {}
    dense = small_model(backbone, **undivided).eval()
    for _, layer in dynamic_layers(model):
        torch.nn.init.zeros_(layer.generator.weight2)
        torch.nn.init.ones_(layer.generator.bias)
    kept = {name: tensor for name, tensor in model.state_dict().items() if name in dense.state_dict()}
    dense.load_state_dict(kept)
    x = 0.1 * images_for(model, 2)
    torch.testing.assert_close(model(x), dense(x), rtol=1e-4, atol=1e-5)


def test_a_fresh_classifier_is_where_the_other_layers_are():
    model = create_model("mobilenetv2", width=0.25).to("meta", torch.float64)
    model.reset_classifier(3)
    weight = model.get_classifier().weight
    assert (weight.device.type, weight.dtype) == ("meta", torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "kernels"),
    [
        ("resnet18", {(3, 3): 16, (1, 1): 3}),
        ("resnet20", {(3, 3): 18, (1, 1): 2}),
        ("resnet56", {(3, 3): 54, (1, 1): 2}),
        ("mobilenetv2", {(1, 1): 17}),
        ("condensenet50", {(1, 1): 24}),
        ("condensenet86", {(1, 1): 42}),
        ("condensenet74", {(1, 1): 36}),
        ("resnet110", {(3, 3): 108, (1, 1): 2}),
        ("resnet164", {(1, 1): 108 + 3, (3, 3): 54}),
        ("densenet40", {(3, 3): 36}),
        ("vgg16", {(3, 3): 12}),
        ("vgg19", {(3, 3): 15}),
        ("mobilenetv1", {(1, 1): 13}),
        ("shufflenet", {(1, 1): 31}),
        ("igcv3", {(1, 1): 64}),
        ("nasneta", {(1, 1): 12 * 2 * 5 + 2 * 2 * 5}),
        ("nasnetb", {(1, 1): 12 * 2 + 2 * 2}),
        ("nasnetc", {(1, 1): 9 * 2 * 5 + 2 * 2 * 6}),
    ],
)
def test_the_layer_goes_where_the_paper_puts_it(backbone, kernels):
    for method in ("dgc", "dgcg", "sgc"):
        kind = StandardGroupConv2d if method == "sgc" else DynamicGroupConv2d
        with torch.device("meta"):
            layers = [module for module in create_model(f"{backbone}_{method}").modules() if isinstance(module, kind)]
        assert Counter(layer.kernel_size for layer in layers) == kernels


def test_shortcuts_that_stay_dense():
    model = create_model("resnet18_dgc", shortcuts="dense")
    assert Counter(layer.kernel_size for _, layer in dynamic_layers(model)) == {(3, 3): 16}
    assert type(model.layer2[0].downsample[0]) is torch.nn.Conv2d


def test_options_reach_the_layers():
    model = create_model("resnet20_dgc", pruning_rate=0.5, heads=8, squeeze=4, keep_rule="round", tie_rule="drop")
    for _, layer in dynamic_layers(model):
        assert (layer.pruning_rate, layer.heads, layer.gate.keep_rule, layer.gate.tie_rule) == (0.5, 8, "round", "drop")
    assert create_model("condensenet50_sgc", groups=2).stages[0].conv1.groups == 2


def test_a_layer_of_ones_own():
    class Own(torch.nn.Conv2d):
        pass

    model = create_model("resnet20", conv_layer=Own)
    assert sum(isinstance(module, Own) for module in model.modules()) == 20
    assert not hasattr(model, "config")
    widths = {"layer1.0.conv1": [12, 16], "layer1.0.bn1": [12], "layer1.0.conv2": [16, 12]}
    pruned = create_model("resnet20", conv_layer=Own, prune="l1", widths=widths)
    assert pruning_of(pruned) is not None
    assert pruned.layer1[0].conv1.out_channels == 12


def test_defaults_are_those_that_give_the_reported_macs():
    rates = {
        name: next(dynamic_layers(create_model(f"{name}_dgc")))[1].pruning_rate
        for name in ("resnet18", "condensenet86", "mobilenetv2")
    }
    assert rates == {"resnet18": 0.55, "condensenet86": 0.75, "mobilenetv2": 0.55}
    assert next(dynamic_layers(create_model("condensenet20_dgc", pruning_rate=0.5)))[1].pruning_rate == 0.5


@pytest.mark.parametrize(
    ("downsample", "sizes"), [((3, 5), [32, 32, 16, 16, 8, 8, 8]), ((2, 4), [32, 16, 16] + [8] * 4)]
)
def test_mobilenetv2_downsampling_moves(downsample, sizes):
    model = create_model("mobilenetv2", num_classes=10, downsample=downsample, stem_stride=1, width=0.75)
    x, seen = torch.randn(1, 3, 32, 32), []
    for block in model.features:
        x = block(x)
        seen.append(x.shape[-1])
    ends = [1, 3, 6, 10, 13, 16, 17]  # the last block of each stage
    assert [seen[end] for end in ends] == sizes


def test_parameter_counts():
    def millions(name):
        return sum(p.numel() for p in create_model(name).parameters()) / 1e6

    assert millions("resnet18") == pytest.approx(11.69, abs=0.005)
    assert millions("mobilenetv2") == pytest.approx(3.505, abs=0.001)
    assert millions("condensenet86_dgc") == pytest.approx(4.27, abs=0.01)
    assert millions("condensenet86_sgc") == pytest.approx(0.52, abs=0.005)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet110", 1.73),
        ("resnet164", 1.70),
        ("densenet40", 1.06),
        ("vgg19", 20.04),
        ("shufflenet", 5.45),
        ("igcv3", 3.49),
        ("nasneta", 5.289978),  # of the published weights
        ("nasnetc", 4.95),
    ],
)
def test_published_parameter_counts(name, parameters):
    with torch.device("meta"):
        model = create_model(name)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(parameters, abs=0.005)


def test_mobilenetv1_is_timms(timm):
    with torch.device("meta"):
        ours, theirs = create_model("mobilenetv1"), timm.create_model("mobilenetv1_100")
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert count_macs(ours).macs == count_macs(theirs, (3, 224, 224)).macs


@pytest.mark.parametrize("depth", [16, 19])
def test_vgg_is_torchvisions_before_its_linear_layers(torchvision_models, depth):
    """But for the biases of convolutions, which a batch norm takes back, and the last pooling."""
    with torch.device("meta"):
        theirs = getattr(torchvision_models, f"vgg{depth}_bn")(weights=None).features
        ours = create_model(f"vgg{depth}").features
    shapes = [
        [tuple(p.shape) for module in features.modules() for p in module.parameters(recurse=False)]
        for features in (ours, theirs)
    ]
    biases = Counter((m.out_channels,) for m in theirs.modules() if isinstance(m, torch.nn.Conv2d))
    assert Counter(shapes[1]) - Counter(shapes[0]) == biases
    assert count_macs(ours, (3, 32, 32)).macs == count_macs(theirs, (3, 32, 32)).macs


@pytest.mark.parametrize(("ours", "theirs"), [("resnet18", "resnet18"), ("mobilenetv2", "mobilenet_v2")])
def test_torchvision_weights_load_and_compute_the_same(torchvision_models, ours, theirs):
    original = getattr(torchvision_models, theirs)(weights=None).eval()
    model = create_model(ours).eval()
    model.load_state_dict(original.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(model(x), original(x))


def test_list_models_takes_patterns():
    methods = ("cgnet", "dgc", "dgcg", "fbs", "flgc", "lccn", "lgc", "rnp", "sgc")
    assert list_models("resnet2*") == ["resnet20", *(f"resnet20_{method}" for method in methods)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: create_model("resnet81_dgc"), "unknown model 'resnet81_dgc'.*Did you mean 'resnet18_dgc'"),
        (lambda: create_model("xyz"), "unknown model 'xyz'. Known: condensenet20"),
        (lambda: create_model("resnet18", pruning_rate=0.5), "no option 'pruning_rate'"),
        (lambda: create_model("resnet20_dgc", growth=(1,)), "no option 'growth'. It takes.*width"),
        (lambda: create_model("resnet20_dgc", pruning_rate=1.5), "got 1.5"),
        (lambda: create_model("resnet20_dgc", heads=3), "3 heads, 16 output"),
        (lambda: create_model("condensenet50", stages=(2, 2)), r"one length, got \[2, 2\] and \[8, 16, 32\]"),
        (
            lambda: create_model("condensenet50", growth=(0, 0, 0)),
            "`growth` must be whole numbers, each from 1 to 1000000, got 8, 8",
        ),
        (lambda: create_model("condensenet50", stages=(), growth=()), "`stages` and `growth` must be.*got none"),
        (lambda: create_model("condensenet50", growth=(4, 5, 6)), r"multiples of 4, the groups.*got \[4, 5, 6\]"),
        (lambda: create_model("resnet20", width=-4), "`width` must be whole numbers, each from 1 to .*, -4"),
        (lambda: create_model("resnet20", width=1.5), "got 3, 3, 3, 1.5"),
        (lambda: create_model("mobilenetv2", width=-1.0), "width.* must be above 0 and up to 1000, got -1.0"),
        (lambda: create_model("mobilenetv2", width=float("nan")), "width.* must be above 0 and up to 1000, got nan"),
        (lambda: create_model("mobilenetv2", downsample=(9,)), r"from 1 to 7, got \[9\]"),
        (lambda: create_model("resnet18", shortcuts="some"), "`shortcuts` must be 'method' or 'dense', got 'some'"),
        (lambda: create_model("mobilenetv1", width=0), "width.* must be above 0 and up to 1000, got 0"),
        (lambda: create_model("shufflenet", groups=0), "`groups` must be whole numbers, each from 1"),
        (
            lambda: create_model("shufflenet", groups=7),
            "`groups` must divide 48, 120, 240, 480, its channel counts",
        ),
        (lambda: create_model("nasneta", channels=10), "multiple of 4, for the stem has a quarter of them, got 10"),
        (lambda: create_model("resnet20", num_classes=-1), "`num_classes` must not be negative"),
    ],
)
def test_wrong_use(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_a_backbone_that_builds_something_else(monkeypatch):
    monkeypatch.setattr(_registry, "_BACKBONES", dict(_registry._BACKBONES))

    @register_backbone()
    def tinynet(conv_layer, num_classes=10):
        return torch.nn.Sequential(conv_layer(3, 8, 1), torch.nn.Linear(8, num_classes))

    with pytest.raises(UserError, match=r"derive it from dgconv\.models\.ImageClassifier, with classifier_path"):
        create_model("tinynet_dgc")


def test_the_name_of_a_backbone_ends_where_that_of_the_method_begins():
    def tiny_net(conv_layer, num_classes=10): ...

    with pytest.raises(UserError, match="must not hold '_', which parts it from the method: tiny_net"):
        register_backbone()(tiny_net)
