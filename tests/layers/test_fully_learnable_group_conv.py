"""Fully learnable group convolution: membership, its gradient, and the convolutions it splits into."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dgconv.errors import UserError
from dgconv.layers import FullyLearnableGroupConv2d


def choose(layer, inputs, outputs):
    """Put every channel into a group by hand."""
    with torch.no_grad():
        layer.input_scores.copy_(F.one_hot(torch.tensor(inputs), layer.groups))
        layer.output_scores.copy_(F.one_hot(torch.tensor(outputs), layer.groups))


def test_every_channel_is_in_exactly_one_group_and_sees_that_group_only():
    layer = FullyLearnableGroupConv2d(12, 10, 3, groups=3)
    members = layer.members()
    assert sorted(torch.cat([inputs for inputs, _ in members]).tolist()) == list(range(12))
    assert sorted(torch.cat([outputs for _, outputs in members]).tolist()) == list(range(10))
    x = torch.randn(2, 12, 5, 5, requires_grad=True)
    out = layer(x)
    for inputs, outputs in members:
        for output in outputs.tolist():
            grad = torch.autograd.grad(out[:, output].square().sum(), x, retain_graph=True)[0]
            assert (grad.abs().sum((0, 2, 3)) > 0).nonzero().flatten().tolist() == inputs.tolist()


def test_forward_is_the_masked_convolution():
    layer = FullyLearnableGroupConv2d(8, 6, 3, padding=1, groups=2, bias=True)
    mask = (layer.output_scores.argmax(1)[:, None] == layer.input_scores.argmax(1)).float()
    x = torch.randn(2, 8, 5, 5)
    expected = F.conv2d(x, layer.weight * mask[:, :, None, None], layer.bias, padding=1)
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("gradient", ["softmax", "argmax"])
def test_scores_learn_through_the_softmax(gradient):
    layer = FullyLearnableGroupConv2d(5, 4, 1, groups=3, gradient=gradient)
    x = torch.randn(2, 5, 4, 4)
    layer(x).square().sum().backward()

    inputs = F.one_hot(layer.input_scores.argmax(1), 3).float().requires_grad_()  # the same, with these as parameters
    outputs = F.one_hot(layer.output_scores.argmax(1), 3).float().requires_grad_()
    weight = layer.weight.detach() * (outputs @ inputs.T)[:, :, None, None]
    F.conv2d(x, weight).square().sum().backward()
    for scores, hard in ((layer.input_scores, inputs), (layer.output_scores, outputs)):
        wanted = hard.grad if gradient == "softmax" else hard.grad * hard.detach()
        soft = scores.detach().requires_grad_()
        expected = torch.autograd.grad(soft.softmax(1), soft, wanted)[0]
        torch.testing.assert_close(scores.grad, expected)
    assert layer.input_scores.grad.abs().sum() > 0
    assert layer.weight.grad.abs().sum() > 0


def test_autocast_does_not_round_the_gradient_of_the_scores():
    layer, probe = FullyLearnableGroupConv2d(12, 10, 1, groups=3), torch.randn(10, 12, 1, 1)
    scores = [layer.input_scores, layer.output_scores]
    exact = torch.autograd.grad(layer.masked_weight(), scores, probe)
    with torch.autocast("cpu", torch.bfloat16):
        weight = layer.masked_weight()
    for got, expected in zip(torch.autograd.grad(weight, scores, probe), exact, strict=True):
        torch.testing.assert_close(got, expected)


def test_channels_move_to_where_the_loss_wants_them():
    layer = FullyLearnableGroupConv2d(4, 4, 1, groups=2)
    choose(layer, [0, 0, 1, 1], [0, 0, 0, 0])  # two inputs are in a group without outputs
    nn.init.ones_(layer.weight)
    x = torch.randn(64, 4, 1, 1)
    optimizer = torch.optim.SGD([layer.input_scores, layer.output_scores], lr=0.5)
    for _ in range(50):
        optimizer.zero_grad()
        F.mse_loss(layer(x), x.sum(1, keepdim=True).expand(-1, 4, -1, -1)).backward()  # all inputs are wanted
        optimizer.step()
    assert layer.share() == 1


def test_unequal_groups_are_counted_as_they_are():
    layer = FullyLearnableGroupConv2d(6, 4, 1, groups=3)
    choose(layer, [0, 0, 0, 0, 1, 2], [0, 0, 0, 1])
    assert layer.share() == (4 * 3 + 1 * 1 + 0) / (6 * 4)


MEMBERS = {
    "random": None,
    "unequal": ([0, 0, 0, 2, 1, 2], [2, 0, 1, 0]),
    "a group without inputs": ([0, 0, 0, 2, 0, 2], [1, 0, 1, 0]),
    "a group without outputs": ([0, 1, 2, 0, 1, 2], [1, 0, 1, 0]),
    "no group with both": ([0] * 6, [1] * 4),
}


@pytest.mark.parametrize("members", MEMBERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{"kernel_size": 1}, {"kernel_size": 3, "stride": 2, "padding": 1}], ids=str)
def test_static_form_is_the_same_function_without_a_mask(members, bias, options):
    layer = FullyLearnableGroupConv2d(6, 4, groups=3, bias=bias, **options)
    if bias:
        nn.init.normal_(layer.bias)
    if MEMBERS[members]:
        choose(layer, *MEMBERS[members])
    static = layer.to_static()
    x = torch.randn(2, 6, 7, 7)
    torch.testing.assert_close(static(x), layer(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(static(x[0]), layer(x[0]), rtol=0, atol=1e-5)
    assert not any("score" in name for name in static.state_dict())
    weights = sum(conv.weight.numel() for conv in static.convs)
    if members != "no group with both":  # there one weight of zero remains
        assert weights == round(layer.share() * layer.weight.numel())


def test_an_output_without_inputs_is_its_bias():
    layer = FullyLearnableGroupConv2d(4, 2, 1, groups=2, bias=True)
    choose(layer, [0, 0, 0, 0], [0, 1])
    out = layer(torch.randn(1, 4, 3, 3))
    assert torch.equal(out[:, 1], layer.bias[1].expand(1, 3, 3))
    assert not torch.equal(out[:, 0], layer.bias[0].expand(1, 3, 3))


@pytest.mark.parametrize(("options", "message"), [({"groups": 0}, "got 0"), ({"gradient": "hard"}, "got 'hard'")])
def test_wrong_use(options, message):
    with pytest.raises(UserError, match=message):
        FullyLearnableGroupConv2d(8, 8, 1, **options)
