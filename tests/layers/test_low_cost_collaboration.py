"""The low-cost collaborative layer."""

import pytest
import torch
import torch.nn.functional as F

from dgconv.errors import UserError
from dgconv.layers import LowCostCollaborativeConv2d


@pytest.mark.parametrize("ceiling", [1.0, 0.5, None])
def test_equation_by_hand(ceiling):
    layer = LowCostCollaborativeConv2d(6, 8, 3, stride=2, padding=1, ceiling=ceiling)
    for norm in (layer.norm, layer.branch_norm):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)

    def normed(values, norm):
        return F.batch_norm(values, None, None, norm.weight, norm.bias, training=True)

    x = torch.randn(3, 6, 7, 7)
    main = normed(F.conv2d(x, layer.weight, stride=2, padding=1), layer.norm)
    branch = normed(F.conv2d(x[:, :, ::2, ::2], layer.branch.weight), layer.branch_norm).relu()
    branch = branch if ceiling is None else branch.minimum(torch.tensor(ceiling))
    out = layer(x)
    torch.testing.assert_close(out, main * branch)
    assert torch.equal(out == 0, branch == 0)
    assert 0.2 < (branch == 0).float().mean() < 0.8
    torch.testing.assert_close(out.relu(), main.relu() * branch)  # the paper's order


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 5, "padding": 2},
        {"kernel_size": 3, "padding": 2, "dilation": 2, "stride": 2},
        {"kernel_size": 3, "padding": (0, 3)},
        {"kernel_size": (1, 3), "padding": "same"},
        {"kernel_size": (4, 2), "padding": "same"},
        {"kernel_size": 2, "stride": 2},
    ],
    ids=str,
)
def test_the_branch_looks_at_the_middle_of_each_window(options):
    layer = LowCostCollaborativeConv2d(2, 2, **options, ceiling=None).eval()
    with torch.no_grad():  # a convolution that copies what the middle of its kernel sees
        middle = [(size - 1) // 2 for size in layer.kernel_size]
        layer.weight.zero_()
        layer.weight[range(2), range(2), middle[0], middle[1]] = 1
        layer.branch.weight.copy_(torch.eye(2)[:, :, None, None])
    x = torch.rand(1, 2, 9, 8)
    seen = F.conv2d(x, layer.weight, None, layer.stride, layer.padding, layer.dilation)
    torch.testing.assert_close(layer.collaborate(x) * (1 + 1e-5) ** 0.5, seen)


def test_gradients_reach_both_branches():
    layer = LowCostCollaborativeConv2d(6, 8, 3)
    layer(torch.randn(3, 6, 7, 7)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in layer.parameters())


def test_a_1x1_convolution_is_left_as_it_is():
    layer, x = LowCostCollaborativeConv2d(6, 8, 1, bias=True), torch.randn(3, 6, 7, 7)
    assert not layer.normalizes
    assert LowCostCollaborativeConv2d(6, 8, 3).normalizes
    assert torch.equal(layer(x), F.conv2d(x, layer.weight, layer.bias))
    assert {name for name, _ in layer.named_parameters()} == {"weight", "bias"}


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_starts_open_by_the_given_share(share):
    layer = LowCostCollaborativeConv2d(6, 16, 3, open_share=share)
    assert (layer.collaborate(torch.randn(16, 6, 9, 9)) > 0).float().mean() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("options", [{"open_share": 0}, {"open_share": 1}, {"ceiling": 0}])
def test_wrong_use(options):
    with pytest.raises(UserError, match="must be"):
        LowCostCollaborativeConv2d(6, 8, 3, **options)


def test_penalty_is_the_sum_of_the_branch_and_taken_once():
    layer = LowCostCollaborativeConv2d(4, 6, 3, padding=1, l1_weight=0.5)
    x = torch.randn(3, 4, 5, 5)
    layer(x)
    expected = 0.5 * layer.collaborate(x).sum() / 3
    torch.testing.assert_close(layer.penalty(), expected)
    assert layer.penalty() is None
    layer.eval()(x)
    assert layer.penalty() is None


def test_a_lasso_means_nothing_where_both_factors_are_homogeneous():
    """The paper's argument: halve phi, double theta; the function is the same, and its loss half as large."""
    layer = LowCostCollaborativeConv2d(4, 6, 3, padding=1, ceiling=None, l1_weight=1.0)
    x = torch.randn(3, 4, 5, 5)
    out, loss = layer(x), layer.penalty()
    with torch.no_grad():
        for norm, scale in ((layer.branch_norm, 0.5), (layer.norm, 2.0)):
            norm.weight.mul_(scale)
            norm.bias.mul_(scale)
    torch.testing.assert_close(layer(x), out)
    torch.testing.assert_close(layer.penalty(), loss / 2)
    held = LowCostCollaborativeConv2d(4, 6, 3, padding=1, ceiling=1.0)
    before = held(x)
    with torch.no_grad():
        held.branch_norm.weight.mul_(0.5)
        held.norm.weight.mul_(2)
    assert not torch.allclose(held(x), before), "a ceiling is not homogeneous"
