"""Runtime neural pruning: the agent's choice, what it skips and how it learns."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dgconv import count_macs, create_model, load_model, save_model
from dgconv.deploy import prepare
from dgconv.layers.runtime_pruning import RuntimePruningConv2d
from dgconv.train import controllers_of
from dgconv.train.mac_budget import MacBudget

SMALL = {"width": 8, "num_classes": 10}


def layers_of(model):
    return [layer for layer in model.modules() if isinstance(layer, RuntimePruningConv2d)]


def undecided(model):
    """Images differ in what they get, and batch norms in what they do."""
    torch.manual_seed(0)
    for layer in layers_of(model):
        nn.init.normal_(layer.encode.weight)
        nn.init.normal_(layer.norm.bias)
    agent = layers_of(model)[0].agent
    nn.init.normal_(agent.values.weight)
    agent.values.bias.data.zero_()
    return model


def test_an_image_gets_the_first_groups_and_zeros():
    layer = undecided(RuntimePruningConv2d(6, 10, 3, padding=1, channel_groups=4)).eval()
    x = torch.randn(32, 6, 5, 5)
    chosen = layer.decide(x)
    assert len(chosen.unique()) > 1
    out = layer(x)
    dense = layer.norm(F.conv2d(x, layer.weight, padding=1))
    group = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
    torch.testing.assert_close(out, dense * (group < chosen[:, None])[:, :, None, None])


def test_evaluation_skips_what_it_does_not_need(monkeypatch):
    """And gives what the masked form gives."""
    model = undecided(create_model("resnet20_rnp", **SMALL)).eval()
    x = torch.randn(8, 3, 16, 16)
    masked = model(x)
    computed = []
    convolve = nn.Conv2d._conv_forward

    def counted(self, x, weight, bias):
        if isinstance(self, RuntimePruningConv2d):
            computed.append(len(x) * len(weight) / (8 * self.out_channels))
        return convolve(self, x, weight, bias)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", counted)
    with torch.no_grad():
        skipping = model(x)
    torch.testing.assert_close(skipping, masked, rtol=1e-5, atol=1e-5)
    assert sum(computed) < 0.9 * len(layers_of(model))
    monkeypatch.undo()
    shares = [layer.kept_share for layer in count_macs(model, images=x).layers if layer.kept_share is not None]
    assert sum(shares) == pytest.approx(sum(computed), rel=1e-4), "and so it is counted"


def test_one_agent_goes_through_the_network():
    model = create_model("resnet20_rnp", **SMALL)
    layers = layers_of(model)
    assert len({id(layer.agent) for layer in layers}) == 1
    assert [layer.number for layer in layers] == list(range(len(layers)))
    assert sum("agent" in name for name in model.state_dict()) == 7, "its parameters are there once"
    twin = copy.deepcopy(undecided(model)).eval()
    assert {id(layer.agent) for layer in layers_of(twin)} == {id(layers_of(twin)[0].agent)}
    assert layers_of(twin)[0].agent is not layers[0].agent
    x = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        before = twin(x)
        layers_of(twin)[0].agent.cell.weight_hh.mul_(-3)  # what it remembers matters to later layers
        assert not torch.allclose(twin(x), before)


def test_it_learns_the_price_of_a_choice_and_the_loss_at_the_end():
    model = create_model("resnet20_rnp", **SMALL, group_price=0.2, loss_price=3.0)
    method = controllers_of(model)
    images, labels = torch.randn(4, 3, 16, 16), torch.arange(4)
    logits = model(images)
    decisions = list(layers_of(model)[0].agent.memory.decisions)
    method.see(images, labels, logits)
    penalty = method.penalty()
    rewards = -3 * F.cross_entropy(logits, labels, reduction="none").detach()
    expected = []
    for number, (taken, _, share) in enumerate(decisions):
        after = decisions[number + 1][1] if number + 1 < len(decisions) else rewards
        expected.append(F.mse_loss(taken, after - 0.2 * share))
    torch.testing.assert_close(penalty, torch.stack(expected).mean())
    penalty.backward()
    assert layers_of(model)[0].weight.grad is None, "its loss is no concern of the filters"
    assert layers_of(model)[3].encode.weight.grad.abs().sum() > 0
    F.cross_entropy(model(images), labels).backward()
    assert method.penalty() is None, "taken once, and only with labels"


def test_some_choices_are_random_for_a_while():
    model = create_model("resnet20_rnp", **SMALL, exploration=0.5)
    method, agent = controllers_of(model), layers_of(model)[0].agent
    shares = {}
    for progress in (0.0, 0.5, 0.8):
        method.before_step(progress)
        model(torch.randn(16, 3, 8, 8))
        shares[progress] = torch.stack([share for _, _, share in agent.memory.decisions])
    assert shares[0.0].min() == shares[0.8].min() == 1, "it begins with all groups"
    assert 0.7 < shares[0.5].mean() < 0.92


def test_a_mac_budget_holds_and_it_is_saved_with_its_agent(tmp_path):
    model = undecided(create_model("resnet20_rnp", **SMALL)).eval()
    images = torch.randn(16, 3, 16, 16)
    budget = MacBudget(model, 0.6)
    budget.update(images)
    assert budget.share_at(float(layers_of(model)[0].offset), images) == pytest.approx(0.6, abs=0.06)
    save_model(model, tmp_path)
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path)(images), model(images))
        torch.testing.assert_close(prepare(model)(images), model(images), rtol=1e-3, atol=1e-3)
