"""Lasso and angle loss against sums written out."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from dgconv import DynamicGroupConv2d, create_model
from dgconv.errors import UserError
from dgconv.train import angle_loss, lasso_loss, take_saliencies


@pytest.fixture
def saliencies():
    return [torch.randn(5, 4, 7, requires_grad=True), torch.randn(5, 4, 11, requires_grad=True)]


def test_lasso_as_in_the_paper(saliencies):
    total = sum(g[b, h].abs().sum() for g in saliencies for b in range(5) for h in range(4))
    torch.testing.assert_close(lasso_loss(saliencies, "paper"), total / (2 * 4) / 5)


def test_lasso_as_in_the_authors_code(saliencies):
    total = sum(g[:, h].abs().mean() for g in saliencies for h in range(4))
    torch.testing.assert_close(lasso_loss(saliencies, "authors"), total)


@pytest.mark.parametrize("reading", ["paper", "authors"])
def test_gradient_of_the_lasso_is_that_of_the_sum(saliencies, reading):
    dims = {"paper": lambda g: g.abs().sum(2).mean() / 2, "authors": lambda g: g.abs().mean((0, 2)).sum()}
    expected = torch.autograd.grad(3 * sum(map(dims[reading], saliencies)), saliencies)
    for got, wanted in zip(torch.autograd.grad(3 * lasso_loss(saliencies, reading), saliencies), expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_lasso_has_two_readings(saliencies):
    with pytest.raises(UserError, match="got 'mine'"):
        lasso_loss(saliencies, "mine")


@pytest.mark.parametrize("loss", [lasso_loss, angle_loss])
def test_a_model_without_dynamic_layers_leaves_nothing(loss):
    with pytest.raises(UserError, match="only dynamic layers leave them"):
        loss(take_saliencies(torch.nn.Conv2d(8, 8, 1)))


@pytest.mark.parametrize("loss", [lasso_loss, angle_loss])
def test_a_model_in_evaluation_mode_leaves_nothing(loss):
    model = DynamicGroupConv2d(8, 8, 1).eval()
    model(torch.randn(1, 8, 4, 4))
    with pytest.raises(UserError, match="in training mode only"):
        loss(take_saliencies(model))


@pytest.mark.parametrize("loss", [lasso_loss, angle_loss])
@pytest.mark.parametrize("wrong", [torch.rand(5, 4, 7), torch.nn.Sequential(DynamicGroupConv2d(8, 8, 1))])
def test_what_is_no_list_of_saliencies(loss, wrong):
    with pytest.raises(UserError, match=r"expected the list that take_saliencies\(model\) returns"):
        loss(wrong)


def test_angle(saliencies):
    total = sum(
        F.cosine_similarity(g[b, i], g[b, j], dim=0).abs()
        for g in saliencies
        for b in range(5)
        for i, j in itertools.combinations(range(4), 2)
    )
    torch.testing.assert_close(angle_loss(saliencies), 2 / (2 * 4 * 3) * total / 5)


def test_gradient_of_the_angle_with_different_numbers_of_heads():
    saliencies = [
        torch.rand(3, heads, channels, requires_grad=True) for heads, channels in ((4, 9), (2, 5), (1, 7), (4, 3))
    ]
    means = []
    for g in saliencies:
        pairs = [F.cosine_similarity(g[:, i], g[:, j]).abs() for i, j in itertools.combinations(range(g.shape[1]), 2)]
        means.append(torch.stack(pairs).mean() if pairs else g.sum() * 0)
    expected = torch.stack(means).mean()
    torch.testing.assert_close(angle_loss(saliencies), expected)
    gradients = torch.autograd.grad(angle_loss(saliencies), saliencies)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, saliencies))


def test_angle_of_layers_with_different_batches():
    first, second = torch.rand(3, 4, 9), torch.rand(6, 4, 9)
    torch.testing.assert_close(angle_loss([first, second]), (angle_loss([first]) + angle_loss([second])) / 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angle_under_autocast(dtype):
    """It stays in float32: small saliencies would vanish, and a backward pass usually is outside."""
    saliency = torch.rand(3, 4, 9)
    saliency[:, 1] = 0  # a dead head
    saliency.requires_grad_()
    expected = angle_loss([saliency])
    with torch.autocast("cpu", dtype):
        loss = angle_loss([saliency])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, saliency), torch.autograd.grad(expected, saliency))


def test_angle_is_0_for_orthogonal_heads_and_1_for_parallel_ones():
    assert angle_loss([torch.eye(4).expand(3, 4, 4)]) == 0
    assert angle_loss([torch.ones(3, 4, 9)]) == pytest.approx(1)
    assert angle_loss([torch.ones(3, 1, 9)]) == 0


def test_angle_of_dead_heads_has_a_finite_gradient():
    saliency = torch.zeros(2, 3, 5, requires_grad=True)
    angle_loss([saliency]).backward()
    assert saliency.grad.isfinite().all()


def test_all_saliencies_of_a_shared_layer_by_a_hook():
    layer = DynamicGroupConv2d(8, 8, 1)
    found = []
    layer.register_forward_hook(lambda layer, *_: found.append(layer.saliency))
    inputs = torch.randn(2, 8, 4, 4), torch.randn(2, 8, 4, 4)
    layer(inputs[0]), layer(inputs[1])
    for saliency, x in zip(found, inputs, strict=True):
        torch.testing.assert_close(saliency, layer.generator(x))
    assert take_saliencies(layer) == [found[1]], "which is told"


@pytest.mark.parametrize("name", ["condensenet20_dgc", "condensenet20_dgcg"])
def test_losses_reach_the_generators_only(name):
    model = create_model(name)
    model(torch.randn(4, 3, 32, 32))
    found = take_saliencies(model)
    assert len(found) == 9
    assert not take_saliencies(model), "taken once"
    (lasso_loss(found[:1]) + angle_loss(found[:1])).backward()
    layer = model.stages[0].conv1
    assert layer.weight.grad is None
    for parameter in layer.generator.parameters():
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("loss", [lasso_loss, partial(lasso_loss, reading="paper"), angle_loss])
def test_gradients_by_torch_func(saliencies, loss):
    expected = torch.autograd.grad(loss(saliencies), saliencies)
    torch.testing.assert_close(torch.func.grad(loss)(saliencies), list(expected))

    def of_one_image(*saliencies):
        return loss([g[None] for g in saliencies])

    each = torch.func.vmap(torch.func.grad(of_one_image, argnums=(0, 1)))(*saliencies)
    torch.testing.assert_close(tuple(g / 5 for g in each), expected)  # both losses are means over the batch
