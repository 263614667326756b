"""Methods that choose by images: what they choose, and what they make of the layers that read it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dgconv.errors import UserError
from dgconv.pruning import attach_pruning, cut, pruning_of
from dgconv.pruning.cp import lasso_choice
from dgconv.train import controllers_of


def two_layers(groups=1):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3, padding="same", groups=groups),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).eval()


def prune(model, method, rate, **options):
    attach_pruning(model, method, rate=rate, input_size=(3, 6, 6), **options)
    images, labels = torch.randn(32, 3, 6, 6), torch.arange(32) % 3
    controllers_of(model, examples=lambda: (images, labels))
    pruning_of(model).prune(model)
    return images, labels


@pytest.mark.parametrize(("groups", "twin_of"), [(1, {4: 0, 5: 1, 6: 2, 7: 3}), (2, {2: 0, 3: 1, 6: 4, 7: 5})])
def test_channel_pruning_rebuilds_what_is_lost(monkeypatch, groups, twin_of):
    """Where a channel that stays is like one that goes, nothing is lost."""
    model = two_layers(groups)[:4]  # the last layer is the output, which stays whole
    with torch.no_grad():
        for twin, one in twin_of.items():
            model[0].weight[twin], model[0].bias[twin] = 2 * model[0].weight[one], 2 * model[0].bias[one]
    before = copy.deepcopy(model)
    monkeypatch.setattr("dgconv.pruning.cp.lasso_choice", lambda gram, *_: torch.arange(len(gram)) < len(gram) // 2)
    images, _ = prune(model, "cp", 0.5)
    smaller = cut(model)
    assert smaller[3].in_channels == 4
    torch.testing.assert_close(smaller(images), model(images), rtol=1e-5, atol=1e-5)
    assert (smaller(images) - before(images)).norm() < 0.01 * before(images).norm()


def test_channel_pruning_keeps_what_its_reader_uses():
    model = two_layers()
    model[3].weight.data[:, [0, 2, 5, 7]] *= 1e-3
    prune(model, "cp", 0.5)
    assert pruning_of(model).kept()[0].nonzero().flatten().tolist() == [1, 3, 4, 6]


def test_the_lasso_leaves_as_many_as_wanted():
    torch.manual_seed(0)
    columns = torch.randn(200, 6, dtype=torch.double)
    wanted = columns @ torch.tensor([3.0, 0, 0, 2, 0, 1], dtype=torch.double)
    gram, target = columns.t() @ columns, columns.t() @ wanted
    assert [lasso_choice(gram, target, keep).nonzero().flatten().tolist() for keep in (1, 2, 3)] == [
        [0],
        [0, 3],
        [0, 3, 5],
    ]
    assert lasso_choice(gram, target, 5).sum() == 5, "though the others explain nothing"


def test_classifiers_amid_the_network_are_trained_until_it_is_pruned(network):
    model = network().train()
    attach_pruning(model, "dcp", aux_losses=3)
    pruning, method = pruning_of(model), controllers_of(model)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8)
    assert pruning.tapped_places == ["layer1.2.conv2", "layer2.1.conv2", "layer3.0.conv2"]
    seen = []
    model.layer2[1].conv2.register_forward_hook(lambda layer, x, out: seen.append(out))
    method.see(images, labels, model(images))
    method.penalty().backward()
    assert all(parameter.grad is not None for parameter in pruning.classifiers.parameters())
    with torch.no_grad():
        for number in (0, 2):
            pruning.classifiers[number][4].weight.zero_()
            pruning.classifiers[number][4].bias.zero_()
    method.see(images, labels, model(images))
    only_one = F.cross_entropy(pruning.classifiers[1](seen[1]), labels)
    torch.testing.assert_close(method.penalty(), only_one + 2 * torch.tensor(10.0).log())
    pruning.examples = lambda: (images, labels)
    pruning.prune(model)
    method.see(images, labels, model(images))
    assert method.penalty() == 0
    assert not cut(model).layer1[2].conv2._forward_hooks, "what looked on is gone"


def test_channels_come_back_by_the_gradient_of_the_joint_loss():
    model = two_layers()
    before = copy.deepcopy(model)
    images, labels = torch.randn(32, 3, 6, 6), torch.arange(32) % 3
    reader = nn.Conv2d(8, 4, 3, padding="same")
    reader.load_state_dict(model[3].state_dict())
    features = model[:3](images)
    reader.weight.data.zero_()  # nothing is there yet
    out = reader(features)
    loss = F.mse_loss(out, model[3](features)) + 2 * F.cross_entropy(model[4:](out), labels)
    (gradient,) = torch.autograd.grad(loss, reader.weight)
    expected = gradient.square().sum((0, 2, 3)).topk(1).indices.tolist()
    attach_pruning(model, "dcp", rate=0.85, input_size=(3, 6, 6), aux_losses=0, discrimination_weight=2.0)
    controllers_of(model, examples=lambda: (images, labels))
    pruning_of(model).prune(model)
    kept = pruning_of(model).kept()[0]
    assert kept.sum() == 2
    assert kept[expected].all()
    start = before[3].weight * kept[:, None, None]
    assert not torch.equal(model[3].weight * kept[:, None, None], start), "what is left is fitted anew"
    smaller = cut(model)
    assert smaller[3].in_channels == 2
    torch.testing.assert_close(smaller(images), model(images), rtol=1e-5, atol=1e-5)


def test_refitting_helps():
    model, before = two_layers(), two_layers()
    images, _ = prune(model, "dcp", 0.5, discrimination_weight=0.0)
    zeroed = two_layers()
    zeroed[3].weight.data *= pruning_of(model).kept()[0][:, None, None]
    left = pruning_of(model).kept()[1]  # of what this layer makes itself
    fitted, cut_off = (F.mse_loss(net[:4](images)[:, left], before[:4](images)[:, left]) for net in (model, zeroed))
    assert fitted < cut_off


def test_they_need_images(network):
    model = network()
    attach_pruning(model, "cp")
    with pytest.raises(UserError, match="give them to controllers_of"):
        controllers_of(model).before_step(0.5)
