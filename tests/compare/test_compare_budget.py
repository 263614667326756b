"""What each method costs: the options that meet a budget, and the offset that keeps to it."""

import pytest
import torch

from dgconv.compare import expected_share, options_for_budget
from dgconv.compare.budget import TOLERANCE
from dgconv.compare.methods import find_rival, rivals
from dgconv.cost.macs import count_macs
from dgconv.errors import UserError
from dgconv.layers import ChannelGatingConv2d
from dgconv.layers.select import dynamic_layers
from dgconv.models import create_model
from dgconv.pruning import cut
from dgconv.train import GlobalThreshold, Recipe, take_saliencies, train
from dgconv.train.mac_budget import MacBudget
from dgconv.train.threshold import macs_per_saliency, quantile, weighted_quantile

SIZE = (3, 16, 16)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in rivals() if name != "dense"])
def test_every_method_meets_half_of_the_macs(method):
    options = options_for_budget(method, "resnet20", 0.5, SIZE)
    assert expected_share(method, "resnet20", options, SIZE) == pytest.approx(0.5, abs=TOLERANCE)
    recipe = Recipe.of(model=find_rival(method).model_name("resnet20"), image_size=16, **options)
    model = recipe.build_model(10)
    if find_rival(method).method.prunes:  # really cut, without training
        model.pruning.examples = lambda: (torch.randn(4, *SIZE), torch.arange(4))
        model.pruning.prune(model)
        dense = count_macs(create_model("resnet20"), SIZE).macs
        assert count_macs(cut(model), SIZE).macs / dense == pytest.approx(0.5, abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fbs", "cgnet", "lccn", "dgc", "dgcg"])
@pytest.mark.parametrize("budget", [0.3, 0.8])
def test_fractions_meet_other_budgets(method, budget):
    options = options_for_budget(method, "resnet20", budget, SIZE)
    assert expected_share(method, "resnet20", options, SIZE) == pytest.approx(budget, abs=0.02)


def test_whole_numbers_come_as_near_as_they_can():
    assert options_for_budget("sgc", "resnet20", 0.25, SIZE) == {"groups": 4}
    assert options_for_budget("sgc", "resnet20", 0.7, SIZE) == {"groups": 2}
    assert options_for_budget("sgc", "resnet20", 0.8, SIZE) == {"groups": 1}
    assert options_for_budget("sgc", "resnet20", 1.0, SIZE) == {"groups": 1}
    assert options_for_budget("lgc", "resnet20", 0.34, SIZE) == {"condensation": 3}


def test_what_cannot_be_reached():
    with pytest.raises(UserError, match=r"lccn cannot bring resnet20 to 0\.05 of its MACs: the nearest .* is 0\.1"):
        options_for_budget("lccn", "resnet20", 0.05, SIZE)
    with pytest.raises(UserError, match=r"sgc cannot bring resnet20 to 0\.005"):
        options_for_budget("sgc", "resnet20", 0.005, SIZE)
    with pytest.raises(UserError, match="unknown method 'sgd'"):
        options_for_budget("sgd", "resnet20", 0.5, SIZE)
    with pytest.raises(UserError, match="above 0 and up to 1"):
        options_for_budget("sgc", "resnet20", 0.0, SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cgnet", "lccn"])
def test_the_offset_keeps_the_measured_macs_at_the_budget(method):
    model = create_model(f"resnet20_{method}", width=8)
    images = torch.randn(16, *SIZE)
    model.train()
    for _ in range(5):
        model(images)  # so that batch norms know these images
    dense = count_macs(create_model("resnet20", width=8), SIZE).macs
    for budget in (0.4, 0.7):
        controller = MacBudget(model, budget)
        offset = controller.update(images)
        assert count_macs(model, images=images).macs / dense == pytest.approx(budget, abs=0.01)
        stored = {float(value) for name, value in model.state_dict().items() if name.endswith("offset")}
        assert stored == {offset}, "one number for the whole network, which checkpoints carry"


def test_a_mac_budget_is_for_some_methods_only():
    with pytest.raises(UserError, match="_cgnet and _lccn and _rnp models"):
        MacBudget(create_model("resnet20_sgc", groups=2), 0.5)
    with pytest.raises(UserError, match="above 0 and up to 1"):
        MacBudget(create_model("resnet20_cgnet"), 0)


def test_a_mac_budget_follows_the_schedule():
    model = create_model("resnet20_cgnet", width=8)
    images = torch.randn(8, *SIZE)
    controller = MacBudget(model, 0.5)
    shares = [controller.share_at(controller.update(images, progress), images) for progress in (0.4, 0.75, 1.0)]
    assert shares[0] > shares[1] + 0.1
    assert shares[1] == shares[2] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("method", "advice"), [("cgnet", "`base_share`"), ("lccn", "another `model`")])
def test_a_mac_budget_out_of_reach_is_told_once_at_the_start(method, advice, caplog):
    model = create_model(f"resnet20_{method}", width=8)
    controller = MacBudget(model, 0.05)
    controller.look_ahead(SIZE)
    assert "`mac_budget` 0.05 of the dense network's MACs is out of this network's reach" in caplog.text
    assert advice in caplog.text
    assert {float(offset) for offset in controller.offsets} == {0.0}, "looking changes nothing"
    images = torch.randn(8, *SIZE)
    least = controller.share_at(controller.update(images), images)
    assert f"takes {least:.3g}." in caplog.text, "which is what it then gets to"
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_a_mac_budget_that_open_gates_miss_is_told_after_an_epoch(caplog):
    model = create_model("resnet20_cgnet", width=8)
    controller = MacBudget(model, 0.5)
    controller.look_ahead(SIZE)
    images = torch.randn(8, *SIZE)
    controller.update(images)
    assert not caplog.records, "it can be kept"
    for layer in model.modules():
        if isinstance(layer, ChannelGatingConv2d):
            layer.threshold.data.fill_(-50)
    controller.update(images)
    controller.update(images)
    assert "it comes down to 1 only, its gates stay open" in caplog.text
    assert "`target`" in caplog.text
    assert len(caplog.records) == 1


def test_a_training_tells_of_a_mac_budget_out_of_reach(tmp_path, caplog):
    small = {"stages": (1,), "growth": (8,), "image_size": 8, "epochs": 1}
    train(Recipe.of(model="condensenet20_cgnet", mac_budget=0.01, **small), tmp_path / "run")
    assert [record.getMessage()[:17] for record in caplog.records] == ["`mac_budget` 0.01"]


def test_weighted_quantile_has_the_wanted_weight_below():
    pairs = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0))
    for share in (0.1, 0.5, 0.9):
        below = pairs[:, 0] < weighted_quantile(pairs, share)
        assert float(pairs[below, 1].sum() / pairs[:, 1].sum()) == pytest.approx(share, abs=2e-3)
    assert weighted_quantile(pairs, 0.0) == 0
    few = torch.tensor([[3.0, 8.0], [1.0, 1.0], [2.0, 1.0]])
    assert [float(weighted_quantile(few, share)) for share in (0.05, 0.15, 0.25, 0.95)] == [1, 2, 3, 3]
    assert weighted_quantile(few, 1.0) == 3, "one stays"


@pytest.mark.parametrize("share", [0.125, 0.25, 0.5, 0.875])
def test_equal_weights_are_as_none(share):
    """Exactly so much weight is below, and not one value less."""
    values = torch.randperm(8).float()
    threshold = weighted_quantile(torch.stack([values, torch.full_like(values, 3.0)], 1), share)
    assert threshold == quantile(values, share)
    assert (values < threshold).float().mean() == share


def test_the_global_threshold_meets_macs_instead_of_saliencies():
    model = create_model("resnet20_dgcg", width=8, pruning_rate=0.6)
    for _, layer in dynamic_layers(model):  # late layers are pruned more, and they have most of the saliencies
        layer.generator.bias.data.fill_(8 / layer.in_channels)
    images = torch.randn(8, *SIZE)
    controller = GlobalThreshold(model, epochs=1, weights=macs_per_saliency(model, SIZE))
    model(images)
    saliencies = take_saliencies(model)
    controller.add(saliencies)
    threshold = controller.end_epoch(progress=1.0)
    kept = [float((g.abs() >= threshold).float().mean()) for g in saliencies]
    count = {layer.name: layer.dense_macs for layer in count_macs(model, SIZE).layers}
    macs = [count[name] for name, _ in dynamic_layers(model)]
    assert sum(k * m for k, m in zip(kept, macs, strict=True)) / sum(macs) == pytest.approx(0.4, abs=0.01)
    every = torch.cat([g.flatten() for g in saliencies]).abs()
    assert float((every < threshold).float().mean()) != pytest.approx(0.6, abs=0.03), (
        "of saliencies it is another share"
    )


def test_saliencies_start_at_one_if_the_recipe_says_so():
    model = Recipe.of(model="resnet20_dgc", saliency_start="ones").build_model(10)
    for _, layer in dynamic_layers(model):
        assert torch.equal(
            layer.generator(torch.randn(2, layer.in_channels, 4, 4)), torch.ones(2, 4, layer.in_channels)
        )
