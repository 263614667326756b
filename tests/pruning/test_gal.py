"""Masks learned against a teacher and a discriminator."""

import copy

import pytest
import torch
import torch.nn.functional as F

from dgconv.pruning import attach_pruning, cut, pruning_of
from dgconv.train import controllers_of
from dgconv.train.optimizer import make_optimizer
from dgconv.train.tables import TrainingTable

IMAGES, LABELS = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(8)


def start(network, backbone="resnet20", **options):
    model = network(backbone)
    attach_pruning(model, "gal", **options)
    return model, pruning_of(model), controllers_of(model)


def masks(pruning):
    return [pruning.get_parameter(name) for name in pruning.undecayed]


def penalty_of(model, method):
    logits = model(IMAGES)
    method.see(IMAGES, LABELS, logits)
    return logits, method.penalty()


def test_the_network_becomes_its_own_teacher(network):
    model, _, method = start(network, imitation_weight=2.0, adversarial_weight=0.0)
    assert penalty_of(model, method)[1] is None
    expected = model(IMAGES)
    method.before_step(1 / 3)
    model.fc.weight.data.mul_(1.5)
    method.before_step(0.5)
    logits, penalty = penalty_of(model, method)
    torch.testing.assert_close(penalty, 2 * F.mse_loss(logits, expected))


def test_the_network_is_trained_against_the_discriminator(network):
    """One gradient for both: down for the discriminator, up for the network."""
    model, pruning, method = start(network, imitation_weight=0.0, adversarial_weight=1.0)
    method.before_step(1 / 3)
    model.fc.weight.data.mul_(2)
    logits, penalty = penalty_of(model, method)
    logits.retain_grad()
    penalty.backward()
    seen = logits.detach().clone().requires_grad_()
    real, fake = pruning.discriminator(pruning.teacher(IMAGES)), pruning.discriminator(seen)
    plain = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
    plain = plain + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
    torch.testing.assert_close(penalty, plain)
    learned = pruning.discriminator[0].weight.grad.clone()
    pruning.discriminator.zero_grad()
    plain.backward()
    torch.testing.assert_close(logits.grad, -seen.grad)
    torch.testing.assert_close(pruning.discriminator[0].weight.grad, learned)


def test_masks_are_moved_by_gradient_and_shrunk_to_zero(network):
    model, pruning, method = start(network, mask_shrinkage=0.01)
    optimizer = make_optimizer(model, TrainingTable(weight_decay=0.5), torch.device("cpu"), 10)
    groups = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {groups[id(mask)] for mask in masks(pruning)} == {0.0}
    F.cross_entropy(model(IMAGES), LABELS).backward()
    assert all(mask.grad.abs().sum() > 0 for mask in masks(pruning))
    method.after_update()
    assert all((mask == 1).all() for mask in masks(pruning)), "not before there is a teacher"
    method.before_step(0.4)
    masks(pruning)[0].data[:2] = torch.tensor([0.005, 0.5])
    method.after_update()
    assert masks(pruning)[0][:3].tolist() == pytest.approx([0, 0.49, 0.99])


@pytest.mark.parametrize("backbone", ["resnet20", "condensenet20"])
def test_the_least_masks_go_and_the_others_go_into_the_weights(network, backbone):
    model, pruning, method = start(network, backbone, rate=0.3)
    method.before_step(0.4)
    for mask in masks(pruning):
        torch.nn.init.uniform_(mask, 0.1, 2)
    values = torch.cat([mask.detach().clone() for mask in masks(pruning)])
    whole = copy.deepcopy(model)
    for mask, kept in zip(masks(pruning_of(whole)), pruning.choose(model, 0.3), strict=True):
        mask.data[~kept] = 0
    method.before_step(2 / 3)
    kept = torch.cat(pruning.kept())
    assert values[~kept].max() <= values.sort().values[round(0.3 * len(values))], "one threshold for all"
    assert all((mask == 1).all() for mask in masks(pruning))
    torch.testing.assert_close(model(IMAGES), whole(IMAGES), rtol=1e-4, atol=1e-4)
    smaller = cut(model)
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in network(backbone).parameters())
    torch.testing.assert_close(smaller(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-5)
    assert penalty_of(model, method)[1] is None
