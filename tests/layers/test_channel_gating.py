"""Channel gating: closed pixels are the base path's, open ones the whole convolution's."""

import pytest
import torch
import torch.nn.functional as F

from dgconv.errors import UserError
from dgconv.layers import ChannelGatingConv2d


def base_weight(layer):
    """The weights of the base path where they are in the whole, zero elsewhere."""
    mask = torch.zeros_like(layer.weight)
    if layer.base == "first":
        mask[:, : layer.base_inputs] = 1
    else:
        outs, ins = layer.out_channels // layer.blocks, layer.in_channels // layer.blocks
        for block in range(layer.blocks):
            mask[block * outs : (block + 1) * outs, block * ins : (block + 1) * ins] = 1
    return layer.weight * mask


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("base", "share"), [("first", 0.25), ("first", 0.4), ("blocks", 0.5), ("blocks", 0.25)])
def test_closed_pixels_equal_the_base_path(base, share, stride, bias):
    layer = ChannelGatingConv2d(8, 12, 3, stride, 1, bias=bias, base=base, base_share=share, start=0.3)
    x = torch.randn(3, 8, 6, 6)
    out, base_path = layer(x), layer.base_path(x)
    torch.testing.assert_close(base_path, F.conv2d(x, base_weight(layer), layer.bias, stride, 1))
    whole = F.conv2d(x, layer.weight, layer.bias, stride, 1)
    mean, var = base_path.mean((0, 2, 3)), base_path.var((0, 2, 3), correction=0)
    opens = (base_path - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt() > 0.3
    assert 0.1 < opens.float().mean() < 0.6
    assert torch.equal(out[~opens], base_path[~opens])
    torch.testing.assert_close(out[opens], whole[opens])
    assert not torch.equal(out[opens], base_path[opens])


def test_thresholds_far_away_open_or_close_everything():
    layer, x = ChannelGatingConv2d(8, 12, 3).eval(), torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        layer.threshold.fill_(-1e6)
        torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight))
        layer.threshold.fill_(1e6)
        assert torch.equal(layer(x), layer.base_path(x))


def test_the_step_learns_as_its_sigmoid():
    layer = ChannelGatingConv2d(8, 4, 1, start=0.2, slope=3.0).eval()
    x = torch.randn(2, 8, 5, 5)
    weights = torch.randn(2, 4, 5, 5)
    (layer(x) * weights).sum().backward()
    with torch.no_grad():
        base = layer.base_path(x)
        above = base / (1 + 1e-5) ** 0.5 - 0.2
        slope = torch.sigmoid(3 * above) * (1 - torch.sigmoid(3 * above)) * 3
        others = F.conv2d(x, layer.weight) - base
        expected = -(weights * others * slope).sum((0, 2, 3))
    torch.testing.assert_close(layer.threshold.grad, expected)


def test_gradients_reach_both_paths_though_closed():
    layer = ChannelGatingConv2d(8, 4, 3, start=1e3)
    layer(torch.randn(2, 8, 5, 5)).sum().backward()
    used = layer.weight.grad.abs().sum((0, 2, 3)) > 0
    assert used.tolist() == [True, True] + [False] * 6  # closed: the others learn nothing
    layer = ChannelGatingConv2d(8, 4, 3)
    layer(torch.randn(2, 8, 5, 5)).square().sum().backward()
    assert (layer.weight.grad.abs().sum((0, 2, 3)) > 0).all()
    assert (layer.threshold.grad != 0).all()


def test_penalty_draws_thresholds_to_the_target():
    layer = ChannelGatingConv2d(8, 4, 3, target=0.6, start=0.1, target_weight=0.5)
    penalty = layer.penalty()
    assert penalty.item() == pytest.approx(0.5 * 4 * 0.25)
    penalty.backward()
    assert (layer.threshold.grad < 0).all()
    assert ChannelGatingConv2d(8, 4, 3, target_weight=0).penalty() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_share": 1.0}, "between 0 and 1, got 1"),
        ({"base": "last"}, "got 'last'"),
        ({"groups": 2}, "groups=2"),
        ({"base": "blocks", "base_share": 0.4}, r"1/p.*got 0.4.*divide both: \[2, 4\]"),
        ({"base": "blocks", "base_share": 1 / 3}, r"8 input and 4 output channels. These divide both: \[2, 4\]"),
        ({"base_share": 0.95}, "0.95 of 8 input channels leaves none"),
    ],
)
def test_wrong_use(options, message):
    with pytest.raises(UserError, match=message):
        ChannelGatingConv2d(8, 4, 3, **options)
