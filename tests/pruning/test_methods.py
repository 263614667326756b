"""What defines each method: what it takes, when, and whether it comes back."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dgconv.errors import UserError
from dgconv.layers.method import pruning_methods
from dgconv.pruning import attach_pruning, pruning_of
from dgconv.pruning.base import units_left
from dgconv.train import controllers_of
from tests.pruning.conftest import looked_at


def weights(model):
    """Of the convolutions that make the prunable channels."""
    return [channel_set.source.of(model).weight for channel_set in pruning_of(model).sets]


def zero_filters(model):
    return [(weight.detach().flatten(1) == 0).all(1) for weight in weights(model)]


def norms_of(model):
    return [member.of(model) for channel_set in pruning_of(model).sets for member in channel_set.having("norm")]


def make_optimizer(model):
    """With all that would move what is pruned: momentum and weight decay."""
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)


def train_a_little(model, method, optimizer=None, progress=0.2):
    optimizer = optimizer or make_optimizer(model)
    model.train()
    for _ in range(3):
        method.before_step(progress)
        images, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        method.see(images, labels, logits)
        if (penalty := method.penalty()) is not None:
            loss = loss + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_update()


def start(network, name, **amount):
    model = network()
    attach_pruning(model, name, **amount or {"rate": 0.25})
    return looked_at(model), controllers_of(model)


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("l1", lambda f: f.abs().sum(1)),
        ("sfp", lambda f: f.square().sum(1)),
        ("fpgm", lambda f: torch.stack([(f - one).norm(dim=1).sum() for one in f])),
    ],
)
def test_takes_the_same_share_of_each_layer_by_its_score(network, name, score):
    model, _ = start(network, name)
    expected = [score(weight.detach().flatten(1)) for weight in weights(model)]
    pruning_of(model).prune(model)
    for zero, scores in zip(zero_filters(model), expected, strict=True):
        assert zero.sum() == len(scores) // 4
        assert scores[zero].max() < scores[~zero].min()


def test_scores_differ(network):
    """On filters made so that each method takes another one."""
    filters = torch.tensor([[3.0, 0, 0, 0], [1.1, 1.1, 1.1, 1.1], [0.0, 0, 0, 2.9], [1.0, 1, 1, 1.6], [9.0, 9, 9, 9]])
    least = {name: pruning_methods()[name].make.scores(None, filters).argmin().item() for name in ("l1", "sfp", "fpgm")}
    assert least == {"l1": 2, "sfp": 1, "fpgm": 3}


@pytest.mark.parametrize(("name", "at"), [("l1", 1 / 3), ("cp", 1 / 3), ("ns", 1 / 2), ("dcp", 1 / 2), ("sfp", 3 / 4)])
def test_prunes_for_good_at_its_time(network, name, at):
    model, method = start(network, name)
    method.before_step(at - 1e-3)
    assert not any(zero.any() for zero in zero_filters(model))
    method.before_step(at)
    chosen = zero_filters(model)
    assert any(zero.any() for zero in chosen)
    assert not any(torch.equal(zero, torch.ones_like(zero)) for zero in chosen)
    train_a_little(model, method, progress=1.0)
    method.end_epoch(1.0)
    assert all(map(torch.equal, zero_filters(model), chosen)), "nothing more, and nothing back"


@pytest.mark.parametrize("name", pruning_methods())
def test_pruned_channels_are_zero_whatever_the_momentum(network, name):
    model, method = start(network, name)
    optimizer = make_optimizer(model)
    train_a_little(model, method, optimizer)
    pruning_of(model).prune(model)
    chosen = zero_filters(model)
    train_a_little(model, method, optimizer)
    assert all(map(torch.equal, zero_filters(model), chosen))
    for channel_set, zero in zip(pruning_of(model).sets, chosen, strict=True):
        (norm,) = [member.of(model) for member in channel_set.having("norm")]
        assert (norm.weight[zero] == 0).all()
        assert (norm.bias[zero] == 0).all()
        assert (norm.weight[~zero] != 0).all()
    seen = []
    block = model.layer1[0]
    block.conv2.register_forward_hook(lambda layer, inputs, out: seen.append(inputs[0]))
    model.eval()(torch.randn(2, 3, 8, 8))
    inside = [channel_set.source.layer for channel_set in pruning_of(model).sets].index("layer1.0.conv1")
    assert (seen[0][:, chosen[inside]] == 0).all()


def test_sfp_filters_come_back(network):
    model, method = start(network, "sfp")
    optimizer = make_optimizer(model)
    train_a_little(model, method, optimizer)
    method.end_epoch(0.1)
    first = zero_filters(model)
    assert all(zero.sum() == len(zero) // 4 for zero in first)
    assert all((norm.weight != 0).all() for norm in norms_of(model))
    train_a_little(model, method, optimizer)
    assert not any(zero.any() for zero in zero_filters(model)), "they go on training"
    with torch.no_grad():
        weights(model)[0][first[0]] += 10
    method.end_epoch(0.2)
    second = zero_filters(model)
    assert second[0].sum() == first[0].sum()
    assert not (second[0] & first[0]).any(), "others are the least now"


def test_sfp_evaluates_what_it_trains(network):
    """A zero filter makes a channel of its batch norm's shift, in both modes."""
    model, method = start(network, "sfp")
    method.end_epoch(0.1)
    block = model.layer1[0]
    zero = (block.conv1.weight.flatten(1) == 0).all(1)
    assert zero.any()
    x = torch.randn(4, 8, 6, 6)
    for mode in (True, False):
        out = block.train(mode).bn1(block.conv1(x))[:, zero]
        assert torch.allclose(out, block.bn1.bias[zero].view(1, -1, 1, 1).expand_as(out), atol=1e-6)


def test_sfp_evaluates_what_it_trains_where_convolutions_have_a_bias():
    conv, norm = nn.Conv2d(3, 8, 3, bias=True), nn.BatchNorm2d(8)
    nn.init.normal_(conv.bias)
    nn.init.normal_(norm.bias)
    model = nn.Sequential(conv, norm, nn.ReLU(), nn.Conv2d(8, 4, 1))
    attach_pruning(model, "sfp", rate=0.25, input_size=(3, 8, 8))
    controllers_of(model).end_epoch(0.1)
    zero = zero_filters(model)[0]
    x = torch.randn(4, 3, 8, 8)
    for mode in (True, False):
        out = norm.train(mode)(conv(x))[:, zero]
        assert torch.allclose(out, norm.bias[zero].view(1, -1, 1, 1).expand_as(out), atol=1e-6)


def test_fpgm_filters_do_not_come_back(network):
    model, method = start(network, "fpgm")
    optimizer = make_optimizer(model)
    train_a_little(model, method, optimizer)
    method.end_epoch(0.1)
    first = zero_filters(model)
    assert all(zero.sum() == len(zero) // 4 for zero in first)
    train_a_little(model, method, optimizer)
    method.end_epoch(0.2)
    assert all(map(torch.equal, zero_filters(model), first))


def test_slimming_has_one_threshold_for_the_network(network):
    model, method = start(network, "ns", rate=0.5)
    norms = norms_of(model)
    with torch.no_grad():
        norms[0].weight.mul_(0.01)  # a layer that counts for nothing
        norms[-1].weight.add_(10)
    scales = torch.cat([norm.weight.detach().abs() for norm in norms])
    threshold = scales.sort().values[len(scales) // 2]
    expected = [norm.weight.detach().abs() < threshold for norm in norms]
    method.before_step(0.5)
    zeros = zero_filters(model)
    assert zeros[0].sum() == len(zeros[0]) - 1, "all but the one that a layer keeps"
    assert not zeros[-1].any()
    assert all(map(torch.equal, zeros[1:], expected[1:]))


def test_slimming_pushes_all_scales_until_it_prunes(network):
    model, method = start(network, "ns")
    all_norms = [norm for norm in model.modules() if isinstance(norm, nn.BatchNorm2d)]
    with torch.no_grad():
        all_norms[3].weight[0] = -1
    method.penalty().backward()
    for norm in all_norms:
        assert torch.allclose(norm.weight.grad, 1e-5 * norm.weight.sign())
        assert norm.bias.grad is None
    assert model.conv1.weight.grad is None
    method.before_step(0.5)
    assert method.penalty() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", pruning_methods())
def test_masks_are_in_the_state(network, name):
    model, _ = start(network, name)
    pruning_of(model).prune(model)
    other, method = start(network, name)
    assert not pruning_of(other).is_final
    other.load_state_dict(model.state_dict())
    assert pruning_of(other).is_final
    before = [kept.clone() for kept in pruning_of(other).kept()]
    train_a_little(other, method, progress=1.0)
    assert all(map(torch.equal, pruning_of(other).kept(), before))
    assert all(map(torch.equal, zero_filters(other), [~kept for kept in before]))


def test_rounding_takes_no_channel_less():
    assert units_left(100, 0.29) == 71  # 0.29 * 100 is 28.999999999999996
    assert units_left(10, 0.25) == 8


def test_at_least_one_channel_stays(network):
    model, _ = start(network, "l1", rate=0.999)
    pruning_of(model).prune(model)
    assert all(kept.sum() == 1 for kept in pruning_of(model).kept())


def test_wrong_use(network):
    model = network()
    with pytest.raises(UserError, match=r"unknown pruning method 'fpg'. Did you mean 'fpgm'"):
        attach_pruning(model, "fpg")
    with pytest.raises(UserError, match="not both"):
        attach_pruning(model, "l1", rate=0.5, budget=0.5)
    with pytest.raises(UserError, match="from 0 to below 1, got 1"):
        attach_pruning(model, "l1", rate=1)
    with pytest.raises(UserError, match="above 0 and up to 1, got 0"):
        attach_pruning(model, "l1", budget=0)
    with pytest.raises(UserError, match="nothing to prune"):
        attach_pruning(nn.Sequential(nn.Conv2d(3, 4, 1)), "l1", input_size=(3, 4, 4))
    attach_pruning(model, "l1")
    with pytest.raises(UserError, match="already"):
        attach_pruning(model, "sfp")


def test_only_plain_convolutions():
    from dgconv import create_model

    with pytest.raises(UserError, match="plain convolutions"):
        attach_pruning(create_model("resnet20_sgc", width=8), "l1")
