"""The network that is left is smaller, plain and the same."""

import copy

import pytest
import torch
from torch import nn

from dgconv import count_macs, create_model
from dgconv.deploy import prepare
from dgconv.errors import UserError
from dgconv.layers.indexed import IndexedGroupConv2d, IndexedLinear
from dgconv.layers.method import pruning_methods
from dgconv.layers.spread import Spread
from dgconv.pruning import attach_pruning, cut, pruning_of, resize_, what_will_be_left
from tests.pruning.conftest import looked_at

BACKBONES = ("resnet20", "mobilenetv2", "condensenet20")


def pruned(network, backbone="resnet20", method="l1", **amount):
    model = network(backbone)
    attach_pruning(model, method, **amount or {"rate": 0.4})
    pruning_of(looked_at(model)).prune(model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("method", pruning_methods())
@pytest.mark.parametrize("backbone", BACKBONES)
def test_equals_the_training_form_without_masks(network, backbone, method):
    model = pruned(network, backbone, method)
    before = copy.deepcopy(model.state_dict())
    smaller = cut(model)
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(smaller(images), model(images), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), "left as it was"
    assert not any("kept" in name for name in smaller.state_dict())
    assert pruning_of(smaller) is None
    added = {type(layer) for layer in smaller.modules()} - {type(layer) for layer in network(backbone).modules()}
    assert added <= {Spread, IndexedGroupConv2d, IndexedLinear}
    assert count_macs(smaller).macs < 0.88 * count_macs(network(backbone)).macs
    assert smaller.num_features == smaller.get_classifier().in_features


@pytest.mark.slow
@pytest.mark.parametrize(("backbone", "method"), [*((name, "l1") for name in BACKBONES), ("resnet20", "sfp")])
def test_can_be_prepared(network, backbone, method):
    smaller = cut(pruned(network, backbone, method))
    images = torch.randn(2, 3, 16, 16)
    prepared = prepare(smaller)
    torch.testing.assert_close(prepared(images), smaller(images), rtol=1e-4, atol=1e-4)
    report = prepared.report()
    assert len(report.native) == len(report.rows)


@pytest.mark.slow
def test_resnet18_saves_what_was_published():
    """SFP and FPGM, 30 %: 41.8 % fewer MACs, 1.72x."""
    model = create_model("resnet18", prune="sfp", prune_rate=0.3)
    dense = count_macs(model).macs
    assert dense / count_macs(what_will_be_left(model)).macs == pytest.approx(1.72, rel=0.02)
    pruning_of(model).prune(model)
    smaller = cut(model)
    assert dense / count_macs(smaller).macs == pytest.approx(1.72, rel=0.02)
    first, last = smaller.layer1[0].conv1, smaller.layer1[0].bn2
    assert (first.in_channels, first.picked_from) == (45, 64), "the stem makes no more"
    assert (last.layer.num_features, last.channels) == (45, 64)
    assert smaller.layer2[0].downsample[0].out_channels == 128, "shortcuts are whole"


class PreActivation(nn.Sequential):
    """Two blocks of norm, ReLU, convolution around shortcuts."""

    input_size = (3, 8, 8)

    def __init__(self):
        blocks = [nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)) for _ in range(2)]
        super().__init__(nn.Conv2d(3, 8, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    def forward(self, x):
        x = self[0](x)
        for block in (self[1], self[2]):
            x = x + block(x)
        return self[5](self[4](self[3](x)))


def test_slimming_selects_channels_in_front_of_a_convolution():
    model = PreActivation().eval()
    for block, worth in ((model[1], [9, 0.1, 9, 0.2, 9, 9, 9, 9]), (model[2], [0.1, 9, 9, 9, 9, 9, 0.3, 0.2])):
        block[0].weight.data = torch.tensor(worth)
        nn.init.normal_(block[0].bias)
    attach_pruning(model, "ns", rate=5 / 16)
    pruning_of(model).prune(model)
    smaller = cut(model)
    assert [smaller[1][2].index.tolist(), smaller[2][2].index.tolist()] == [[0, 2, 4, 5, 6, 7], [1, 2, 3, 4, 5]]
    assert smaller[0].out_channels == 8, "the shortcut stays whole"
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(smaller(images), model(images))


def test_cut_network_trains_on(network):
    smaller = cut(pruned(network)).train()
    smaller(torch.randn(4, 3, 16, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in smaller.parameters())


@pytest.mark.parametrize(
    ("backbone", "method"),
    [*((name, "l1") for name in BACKBONES), ("resnet20", "sfp"), ("condensenet20", "ns")],
)
def test_widths_rebuild_it(network, backbone, method):
    smaller = cut(pruned(network, backbone, method))
    widths = smaller.config.pop("widths")
    assert not any(key.startswith("prune") for key in smaller.config)
    fresh = create_model(**smaller.config)
    resize_(fresh, widths)
    fresh.load_state_dict(smaller.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(fresh.eval()(images), smaller(images))
    assert fresh.num_features == smaller.num_features


@pytest.mark.slow
@pytest.mark.parametrize("classes", [0, 5, 20])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_fresh_classifier_is_rebuilt_too(network, backbone, classes):
    smaller = cut(pruned(network, backbone))
    smaller.reset_classifier(classes)
    fresh = create_model(**smaller.config)
    fresh.load_state_dict(smaller.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(fresh.eval()(images), smaller.eval()(images))


def test_cut_again(network):
    smaller = cut(pruned(network, rate=0.5))
    attach_pruning(smaller, "l1", rate=0.2)  # which takes nothing from its narrow layers
    pruning_of(smaller).prune(smaller)
    smallest = cut(smaller)
    fresh = create_model(**smallest.config)
    fresh.load_state_dict(smallest.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(fresh.eval()(images), smallest(images))


def test_what_is_spread_is_not_cut_again(network):
    with pytest.raises(UserError, match="plain convolutions"):
        attach_pruning(cut(pruned(network, method="sfp")), "l1")


def test_nothing_pruned_nothing_cut(network):
    model = network()
    attach_pruning(model, "sfp")
    whole = cut(model)
    assert "widths" not in whole.config
    assert count_macs(whole).macs == count_macs(model).macs


def test_a_network_of_ones_own():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.Flatten(), nn.Linear(6 * 4, 2)
    ).eval()
    attach_pruning(model, "fpgm", rate=0.5, input_size=(3, 4, 4))
    pruning_of(model).prune(model)
    smaller = cut(model)
    assert [smaller[0].out_channels, smaller[2].in_channels, smaller[2].out_channels] == [4, 4, 3]
    assert len(smaller) == 5
    assert smaller[4].in_features == 3 * 4, "a channel is four features of the linear layer"
    images = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(smaller(images), model(images))


def test_wrong_use(network):
    with pytest.raises(UserError, match="nothing tells what to cut"):
        cut(network())
    with pytest.raises(UserError, match=r"width of fc must be from 1 to 10, got 11"):
        resize_(network(), {"fc": [11, 32]})
    with pytest.raises(UserError, match=r"does not fit a layer 'nothing'"):
        resize_(network(), {"nothing": [1]})
    with pytest.raises(UserError, match=r"does not fit a layer 'bn1'"):
        resize_(network(), {"bn1": [4, 4, 4]})
