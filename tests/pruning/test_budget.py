"""The rate that leaves a given share of the MACs."""

import pytest

from dgconv import count_macs, create_model
from dgconv.errors import UserError
from dgconv.pruning import attach_pruning, cut, pruning_of


def share(model, dense_macs):
    return count_macs(cut(model)).macs / dense_macs


@pytest.mark.slow
@pytest.mark.parametrize(("method", "budget"), [("l1", 0.25), ("l1", 0.5), ("l1", 0.8), ("sfp", 0.5), ("fpgm", 0.5)])
def test_cut_network_has_the_macs_asked_for(method, budget):
    model = create_model("resnet20")
    dense = count_macs(model).macs
    attach_pruning(model, method, budget=budget)
    pruning_of(model).prune(model)
    assert share(model, dense) == pytest.approx(budget, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["condensenet20", "mobilenetv2"])
def test_other_backbones(network, backbone):
    model = network(backbone)
    dense = count_macs(model).macs
    attach_pruning(model, "l1", budget=0.5)
    pruning_of(model).prune(model)
    assert share(model, dense) == pytest.approx(0.5, rel=0.05)


@pytest.mark.slow
def test_slimming_meets_it_with_what_it_learned(network):
    model = network()
    dense = count_macs(model).macs
    pruning = attach_pruning(model, "ns", budget=0.5)
    before = pruning.rate
    for block in model.layer3:
        block.bn1.weight.data.mul_(0.01)  # most channels are here, and each of them costs little
    pruning.prune(model)
    assert share(model, dense) == pytest.approx(0.5, rel=0.05)
    assert all(kept.sum() == 1 for kept in pruning.kept()[6:]), "all of these, and others"
    assert pruning.rate > before + 0.1


def test_other_input_size():
    model = create_model("resnet20", width=8)
    dense = count_macs(model, (3, 8, 8)).macs
    attach_pruning(model, "l1", budget=0.5, input_size=(3, 8, 8))
    pruning_of(model).prune(model)
    assert count_macs(cut(model), (3, 8, 8)).macs / dense == pytest.approx(0.5, rel=0.05)


def test_out_of_reach():
    with pytest.raises(UserError, match=r"cannot bring ResNet to 0.01 of its MACs"):
        attach_pruning(create_model("resnet20"), "l1", budget=0.01)
