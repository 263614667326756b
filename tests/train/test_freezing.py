"""A choice of channels that is fixed while training, and losses and noise that are ours and not the paper's."""

import pytest
import torch

from dgconv.errors import UserError
from dgconv.layers import DynamicGroupConv2d
from dgconv.layers.controller import Place
from dgconv.models import create_model
from dgconv.train.freezing import ChoiceFreezing
from dgconv.train.losses import balance_loss


def frozen_layer(channels=12, heads=2, rate=0.5):
    torch.manual_seed(0)
    layer = DynamicGroupConv2d(channels, 8, 3, padding=1, heads=heads, pruning_rate=rate)
    freezing = ChoiceFreezing(torch.nn.Sequential(layer), start=0.5)
    for _ in range(3):
        layer.train()(torch.randn(5, channels, 6, 6))
        freezing.after_step([layer.saliency], Place(0, 0, 1))
    return layer, freezing


def test_all_images_keep_the_channels_of_greatest_mean():
    layer, freezing = frozen_layer()
    freezing.before_step(0.4)
    assert not freezing.is_frozen
    freezing.before_step(0.5)
    wanted = layer.gate.mask(freezing.means[0][None])[0]
    assert torch.equal(freezing.kept[0].bool(), wanted)
    assert wanted.sum(1).tolist() == [6, 6]
    saliency = layer.eval().generator(5 * torch.randn(50, 12, 4, 4))
    assert (saliency[:, ~wanted] == 0).all(), "for any image"
    assert saliency[:, wanted].std(0).max() > 0, "by how much still depends on it"


def test_a_frozen_choice_stays_under_momentum_and_decay():
    layer, freezing = frozen_layer()
    freezing.before_step(1.0)
    left_out = ~freezing.kept[0].bool()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1)
    for parameter in layer.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
    for _ in range(3):
        layer.train()(torch.randn(5, 12, 6, 6)).square().mean().backward()
        optimizer.step()
        freezing.after_update()
    assert (layer.generator(torch.randn(9, 12, 3, 3))[:, left_out] == 0).all()


def test_goes_on_from_its_state():
    _, freezing = frozen_layer()
    _, other = frozen_layer(rate=0.75)
    freezing.before_step(0.6)
    other.load_state({name: value.clone() for name, value in freezing.state().items()})
    assert other.is_frozen
    assert all(torch.equal(a, b) for a, b in zip(other.kept + other.means, freezing.kept + freezing.means, strict=True))


def test_a_global_threshold_is_refused():
    model = create_model("resnet20_dgcg", width=8)
    with pytest.raises(UserError, match="head-wise"):
        ChoiceFreezing(model, 0.5)


def test_balance_is_the_squared_coefficient_of_variation():
    even, one = torch.ones(4, 2, 8), torch.zeros(4, 2, 8)
    one[:, :, 3] = 1.0
    assert float(balance_loss([even])) == pytest.approx(0, abs=1e-6)
    assert float(balance_loss([one])) == pytest.approx(7.0)  # n - 1 where one of n takes all
    assert float(balance_loss([even, one])) == pytest.approx(3.5)


def test_exploration_changes_training_only():
    torch.manual_seed(0)
    layer = DynamicGroupConv2d(16, 8, 1, heads=2, pruning_rate=0.75, exploration=0.5, score_noise=0.3)
    plain = DynamicGroupConv2d(16, 8, 1, heads=2, pruning_rate=0.75)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(64, 16, 2, 2)
    assert torch.equal(layer.eval()(x), plain.eval()(x))
    saliency = layer.generator(x)
    best, drawn = plain.gate.mask(saliency), layer.train().gate.mask(saliency)
    assert (drawn.sum(-1) == 4).all(), "as many as ever"
    differs = (drawn != best).any(-1).any(-1).float().mean()
    assert 0.3 < float(differs) <= 1


def test_without_scales_what_is_kept_passes_as_it_is_and_saliencies_learn():
    torch.manual_seed(0)
    layer = DynamicGroupConv2d(8, 4, 1, heads=1, pruning_rate=0.5, scales=False)
    x = torch.randn(3, 8, 5, 5)
    out = layer(x)
    kept = layer.gate.mask(layer.saliency)[:, 0]
    wanted = torch.einsum("oc,bc,bchw->bohw", layer.weight[:, :, 0, 0], kept.float(), x)
    torch.testing.assert_close(out, wanted)
    out.square().sum().backward()
    assert layer.generator.bias.grad.abs().sum() > 0
