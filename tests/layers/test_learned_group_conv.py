"""Learned group convolution: when and what it drops, and what is left of it."""

import pytest
import torch
from torch import nn

from dgconv.errors import UserError
from dgconv.layers import LearnedGroupConv2d, StandardGroupConv2d
from dgconv.layers._stepwise import steps_done
from dgconv.layers.indexed import IndexedGroupConv2d


def kept(layer):
    (count,) = set(layer.mask.sum(1).tolist())  # as many in every group
    return count


@pytest.mark.parametrize(
    ("channels", "condensation", "stages"),
    [
        (16, 4, {0: 16, 0.166: 16, 1 / 6: 12, 0.333: 12, 1 / 3: 8, 0.499: 8, 1 / 2: 4, 1: 4}),
        (16, 2, {0.49: 16, 0.5: 8, 1: 8}),
        (10, 4, {0.1: 10, 0.2: 8, 0.4: 6, 0.6: 3}),  # not divisible: ceil(10 / 4) are left, drops of 2, 2 and 3
        (16, 1, {0: 16, 1: 16}),
    ],
)
def test_condenses_over_the_first_half(channels, condensation, stages):
    layer = LearnedGroupConv2d(channels, 8, 1, condensation=condensation)
    for progress, count in stages.items():
        layer.before_step(progress)
        assert kept(layer) == count, progress


def test_a_step_is_taken_although_its_progress_is_rounded_down():
    assert (1 / 98) * 98 < 1
    assert [steps_done(progress, 49) for progress in (0.0102, 1 / 98, 0.5, 1)] == [0, 1, 49, 49]


def test_a_jump_condenses_at_once():
    layer = LearnedGroupConv2d(16, 8, 1)
    layer.before_step(1)
    assert kept(layer) == 4


def test_each_group_drops_the_inputs_it_uses_least():
    layer = LearnedGroupConv2d(8, 6, 3, groups=2, condensation=4)
    with torch.no_grad():
        for group in range(2):  # outputs group::2
            use = torch.randperm(8).float()
            layer.weight[group::2] = torch.randn(3, 8, 3, 3).sign() * (use + 1)[:, None, None]
            layer.weight[group, 0] = 0  # one filter alone decides nothing
    expected = [set(layer.weight[group::2].abs().sum((0, 2, 3)).argsort()[2:].tolist()) for group in range(2)]
    layer.before_step(1 / 6)
    assert [set(row.nonzero().flatten().tolist()) for row in layer.mask] == expected


def test_what_is_dropped_stays_dropped():
    layer = LearnedGroupConv2d(8, 4, 1, groups=2)
    layer.before_step(1 / 6)
    before = layer.mask.clone()
    with torch.no_grad():  # now the largest weights are those that were dropped
        layer.weight.unflatten(0, (-1, 2))[:] += 100 * ~before[:, :, None, None]
    layer.before_step(1 / 3)
    assert not (layer.mask & ~before).any()
    assert kept(layer) == 4
    layer.before_step(0)
    assert kept(layer) == 4


def test_a_checkpoint_carries_the_choice():
    layer, other = LearnedGroupConv2d(8, 8, 1), LearnedGroupConv2d(8, 8, 1)
    start = {key: value.clone() for key, value in layer.state_dict().items()}
    layer.before_step(1)
    other.load_state_dict(layer.state_dict())
    other.before_step(1)
    assert torch.equal(other.mask, layer.mask)
    other.load_state_dict(start)
    assert kept(other) == 8
    other.before_step(1)
    assert torch.equal(other.mask, layer.mask)


def test_moving_is_free_while_nothing_changes(monkeypatch):
    layer = LearnedGroupConv2d(8, 8, 1)
    calls = []
    monkeypatch.setattr(layer, "keep_only", calls.append)
    for step in range(100):
        layer.before_step(step / 100)
    assert calls == [8, 6, 4, 2]


def test_groups_own_every_gth_output_and_gradients_reach_what_is_kept():
    layer = LearnedGroupConv2d(8, 8, 3, groups=4)
    layer.before_step(0.5)
    x = torch.randn(2, 8, 5, 5, requires_grad=True)
    out = layer(x)
    for group in range(4):
        reached = torch.autograd.grad(out[:, group::4].square().sum(), x, retain_graph=True)[0].abs().sum((0, 2, 3)) > 0
        assert torch.equal(reached, layer.mask[group])
    out.square().sum().backward()
    reached = layer.weight.grad.abs().sum((2, 3)) > 0
    assert torch.equal(reached, layer.mask.repeat(2, 1))


def test_group_lasso_by_hand_until_the_last_condensation():
    layer = LearnedGroupConv2d(4, 6, 3, groups=2, condensation=2, group_lasso=0.1)
    expected = sum(layer.weight[g::2, j].norm() for g in range(2) for j in range(4))
    torch.testing.assert_close(layer.penalty(), 0.1 * expected)
    layer.penalty().backward()
    assert layer.weight.grad.abs().sum() > 0
    layer.before_step(0.5)
    assert layer.penalty() == 0
    assert LearnedGroupConv2d(4, 6, 3, groups=2).penalty() is None


@pytest.mark.parametrize("progress", [0, 0.2, 1])
@pytest.mark.parametrize(
    "options",
    [{"kernel_size": 1}, {"kernel_size": 3, "padding": "same"}, {"kernel_size": 3, "stride": 2, "dilation": 2}],
    ids=str,
)
@pytest.mark.parametrize("bias", [True, False])
def test_static_form_is_the_same_function_without_a_mask(progress, options, bias):
    layer = LearnedGroupConv2d(10, 12, groups=3, bias=bias, **options)
    layer.before_step(progress)
    static = layer.to_static()
    x = torch.randn(2, 10, 9, 9)
    torch.testing.assert_close(static(x), layer(x), rtol=0, atol=1e-5)
    assert not any(tensor.dtype == torch.bool for tensor in static.state_dict().values())
    if progress:
        assert type(static) is IndexedGroupConv2d
        assert static.weight.numel() == layer.mask.sum() * layer.weight[0, 0].numel() * 4  # filters a group
    else:
        assert type(static) is nn.Conv2d


def test_static_form_of_equal_choices_is_a_standard_group_convolution():
    layer = LearnedGroupConv2d(8, 8, 1, groups=4)
    layer.mask.copy_(torch.eye(4, dtype=torch.bool).repeat_interleave(2, 1))
    static = layer.to_static()
    standard = StandardGroupConv2d(8, 8, 1, groups=4)
    standard.weight.data.copy_(static.weight)
    x = torch.randn(1, 8, 3, 3)
    torch.testing.assert_close(standard(x), layer(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 3}, r"3 groups, 8 output channels. Use one of \[1, 2, 4, 8\]"),
        ({"condensation": 0}, "`condensation` must be .* from 1 to 1000000, got 0"),
        ({"condensation": 10**23}, "`condensation` must be .* from 1 to 1000000, got 10000"),
        ({"group_lasso": -1}, "`group_lasso` must be a number from 0 .*, got -1"),
    ],
)
def test_wrong_use(options, message):
    with pytest.raises(UserError, match=message):
        LearnedGroupConv2d(8, 8, 1, **options)
