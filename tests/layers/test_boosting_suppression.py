"""Feature boosting and suppression: who wins, by how much, and from when on."""

import copy

import pytest
import torch
import torch.nn.functional as F

from dgconv.deploy import prepare
from dgconv.errors import UserError
from dgconv.layers import FeatureBoostingConv2d


def test_equation_by_hand():
    layer = FeatureBoostingConv2d(6, 10, 3, padding=1, density=0.35).eval()  # 4 of 10
    layer.norm.running_mean.normal_()
    layer.norm.running_var.uniform_(0.5, 2)
    torch.nn.init.normal_(layer.shift)
    x = torch.randn(3, 6, 5, 5)
    out = layer(x)
    convolved = F.conv2d(x, layer.weight, padding=1)
    normed = F.batch_norm(convolved, layer.norm.running_mean, layer.norm.running_var)
    for image in range(3):
        saliency = (layer.generator.weight @ x[image].abs().mean((1, 2)) + layer.generator.bias).relu()
        winners = saliency.argsort(descending=True)[:4]
        expected = torch.zeros_like(normed[image])
        for o in winners:
            expected[o] = saliency[o] * normed[image, o] + layer.shift[o]
        torch.testing.assert_close(out[image], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_does_not_round_the_saliencies(dtype):
    layer, x = FeatureBoostingConv2d(32, 64, 3), torch.randn(4, 32, 5, 5).to(dtype)
    exact = layer.predict(x.float())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer.predict(x), exact)


@pytest.mark.parametrize(("density", "keep"), [(1, 16), (0.7, 12), (0.5, 8), (0.01, 1)])
def test_exactly_the_kept_outputs_are_not_zero(density, keep):
    out = FeatureBoostingConv2d(8, 16, 3, density=density)(torch.randn(5, 8, 6, 6))
    assert out.flatten(2).any(2).sum(1).tolist() == [keep] * 5


def test_lowest_index_wins_a_tie():
    layer = FeatureBoostingConv2d(8, 8, 1, density=0.5)
    torch.nn.init.zeros_(layer.generator.weight)  # every saliency is the bias, 1
    out = layer(torch.randn(3, 8, 4, 4))
    assert out.flatten(2).any(2).tolist() == [[True] * 4 + [False] * 4] * 3


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"density": 0.7}, {0: 20, 0.16: 20, 1 / 6: 18, 1 / 3: 16, 1 / 2: 14, 1: 14}),
        ({"density": 0.65}, {0: 20, 1 / 8: 18, 1 / 4: 16, 3 / 8: 14, 1 / 2: 13, 1: 13}),  # the last step is half one
        ({"density": 0.5, "density_step": 0.5}, {0.49: 20, 0.5: 10}),
        ({"density": 1}, {0: 20, 1: 20}),
    ],
)
def test_density_falls_in_steps_over_the_first_half(options, counts):
    layer = FeatureBoostingConv2d(4, 20, 1, **options)
    assert int(layer.gate.keep) == list(counts.values())[-1], "without a trainer the target holds"
    for progress, count in counts.items():
        layer.before_step(progress)
        assert int(layer.gate.keep) == count


def test_a_checkpoint_carries_the_density():
    layer, other = FeatureBoostingConv2d(4, 10, 1), FeatureBoostingConv2d(4, 10, 1)
    layer.before_step(0.2)
    other.before_step(0)
    other.load_state_dict(layer.state_dict())
    assert int(other.gate.keep) == 9
    other.before_step(0)
    assert int(other.gate.keep) == 10


def test_gradients_reach_the_winners_and_the_generator():
    layer = FeatureBoostingConv2d(6, 8, 3, density=0.5, l1_weight=0)
    torch.nn.init.zeros_(layer.generator.weight)  # outputs 0 to 3 win everywhere
    layer(torch.randn(4, 6, 5, 5)).square().sum().backward()
    for gradient in (layer.weight.grad, layer.generator.weight.grad, layer.generator.bias.grad, layer.shift.grad):
        assert (gradient.flatten(1).any(1) if gradient.dim() > 1 else gradient != 0).tolist() == [True] * 4 + [
            False
        ] * 4


def test_penalty_is_the_sum_of_saliencies_and_taken_once():
    layer = FeatureBoostingConv2d(6, 8, 1, l1_weight=0.5)
    x = torch.randn(4, 6, 5, 5)
    layer(x)
    penalty = layer.penalty()
    torch.testing.assert_close(penalty, 0.5 * layer.predict(x).sum() / 4)
    penalty.backward()
    assert layer.generator.weight.grad.abs().sum() > 0
    assert layer.weight.grad is None
    assert layer.penalty() is None
    layer.eval()(x)
    assert layer.penalty() is None


def test_can_be_copied_after_a_step():
    layer = FeatureBoostingConv2d(6, 8, 1)
    layer(torch.randn(4, 6, 5, 5)).sum().backward()
    assert copy.deepcopy(layer).penalty() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0}, "got 0"),
        ({"density": 1.1}, "got 1.1"),
        ({"density_step": 0}, "step"),
        ({"l1_weight": -1}, "l1"),
    ],
)
def test_wrong_use(options, message):
    with pytest.raises(UserError, match=message):
        FeatureBoostingConv2d(8, 8, 1, **options)


def test_beta_of_the_papers_equation_is_not_masked():
    layer = FeatureBoostingConv2d(4, 8, 3, padding=1, density=0.5, beta_for="all").eval()
    torch.nn.init.normal_(layer.shift)
    x = torch.randn(2, 4, 5, 5)
    won = layer.winners(x)
    masked = FeatureBoostingConv2d(4, 8, 3, padding=1, density=0.5).eval()
    masked.load_state_dict(layer.state_dict())
    out = layer(x)
    assert won.sum() == 8
    assert torch.equal(out[won], masked(x)[won])
    lost = layer.shift.expand(2, 8)[~won]
    assert torch.equal(out[~won], lost[:, None, None].expand(-1, 5, 5))
    assert (masked(x)[~won] == 0).all()
    prepared = prepare(layer)
    torch.testing.assert_close(prepared(x), out, msg="left to torch, and the same")
