"""What the paper leaves open can be set from a recipe or the command line, and by default nothing changes."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dgconv import create_model, dynamic_layers
from dgconv.analysis.plan import plan_training
from dgconv.cli.train import parse_train
from dgconv.data import load_data
from dgconv.errors import UserError
from dgconv.runs import RunFolder
from dgconv.train import Recipe, evaluate, train
from dgconv.train.optimizer import generator_weight_decay, make_optimizer
from dgconv.train.recipe_files import load_recipe
from dgconv.train.schedule import cosine_learning_rate

CPU = torch.device("cpu")
SMALL = {"stages": (1, 1), "growth": (20, 20)}  # dynamic layers with 40 and 60 inputs


def layers_of(**options):
    torch.manual_seed(0)
    return [layer for _, layer in dynamic_layers(Recipe.of(**SMALL, **options).build_model(10))]


def test_by_default_the_network_is_the_one_of_its_name():
    torch.manual_seed(0)
    expected = create_model("condensenet20_dgc", num_classes=10).state_dict()
    torch.manual_seed(0)
    found = Recipe().build_model(10).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_initial_scale():
    per_head, undivided = layers_of()[0], layers_of(per_head_init=False)[0]
    assert torch.allclose(per_head.weight, math.sqrt(per_head.heads) * undivided.weight)
    assert torch.equal(layers_of(per_head_init=True)[0].weight, per_head.weight)


def test_keep_count_and_ties():
    assert [int(layer.gate.keep) for layer in layers_of(pruning_rate=0.55)] == [18, 27]
    assert [int(layer.gate.keep) for layer in layers_of(pruning_rate=0.54)] == [19, 28]  # 18.4 and 27.6
    assert [int(layer.gate.keep) for layer in layers_of(pruning_rate=0.54, keep_rule="round")] == [18, 28]
    ties = torch.ones(1, 4, 40)
    assert layers_of()[0].gate.mask(ties).sum() == 4 * 10
    assert layers_of(tie_rule="drop")[0].gate.mask(ties).sum() == 0


def test_squeeze():
    assert [layer.generator.hidden for layer in layers_of()] == [5, 7]
    assert [layer.generator.hidden for layer in layers_of(halve_squeeze=False)] == [2, 3]


def test_a_norm_in_front():
    model = Recipe.of(model="resnet20_dgc", width=8, pre_norm=True).build_model(10)
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    plain = Recipe.of(model="resnet20_dgc", width=8).build_model(10)
    assert norms - sum(isinstance(module, nn.BatchNorm2d) for module in plain.modules()) == len(
        list(dynamic_layers(model))
    )


@pytest.mark.slow
@pytest.mark.parametrize(("options", "overflows"), [({}, False), ({"saliency_start": "random"}, True)], ids=str)
def test_from_its_start_a_resnet_does_not_overflow(options, overflows):
    """As from the paper's it does: evaluated while its batch norms have seen little."""
    torch.manual_seed(0)
    model, data = create_model("resnet20_dgc", **options), load_data("digits", image_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    order = torch.Generator().manual_seed(0)
    for _, (x, target) in zip(range(5), data.train.batches(64, train=True, generator=order), strict=False):
        model.train()
        optimizer.zero_grad()
        cross_entropy(model(x), target).backward()
        optimizer.step()
    assert bool(evaluate(model, data.test).overflowing) == overflows


def test_saliency_start():
    for layer in layers_of(saliency_start="calm"):
        saliency = layer.generator(torch.rand(2, layer.in_channels, 4, 4))
        assert 0 < (saliency - 1).abs().max() < 0.5
    assert all(torch.all(layer.generator.weight2 == 0) for layer in layers_of(saliency_start="ones"))
    assert not any(torch.all(layer.generator.weight2 == 0) for layer in layers_of())


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_weight_decay_of_the_generator(decay):
    recipe = Recipe.of(**SMALL, weight_decay=0.1, generator_weight_decay=decay)
    model = recipe.build_model(10)
    others, generators = make_optimizer(model, recipe.training, CPU, 10).param_groups
    assert (others["weight_decay"], generators["weight_decay"]) == (0.1, decay)
    expected = {id(p) for _, layer in dynamic_layers(model) for p in layer.generator.parameters()}
    assert {id(p) for p in generators["params"]} == expected
    assert {id(p) for p in others["params"]} == {id(p) for p in model.parameters()} - expected


def test_a_decayed_generator_shrinks_and_an_undecayed_one_stays():
    def after_a_step(decay):
        recipe = Recipe.of(**SMALL, weight_decay=0.1, generator_weight_decay=decay, momentum=0)
        torch.manual_seed(0)
        model = recipe.build_model(10)
        before = [layer.generator.weight1.detach().clone() for _, layer in dynamic_layers(model)]
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        make_optimizer(model, recipe.training, CPU, 10).step()
        after = [layer.generator.weight1.detach() for _, layer in dynamic_layers(model)]
        return [float(new.norm() / old.norm()) for new, old in zip(after, before, strict=True)]

    assert after_a_step(None) == pytest.approx([0.99, 0.99])  # learning rate times weight decay
    assert after_a_step(0.0) == [1.0, 1.0]


def test_momentum_is_nesterovs_from_the_first_step_on():
    recipe = Recipe.of(**SMALL, momentum=0.5, weight_decay=0)
    model = recipe.build_model(10)
    optimizer = make_optimizer(model, recipe.training, CPU, 10)
    before = model.stem.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for velocity in (1.0, 1.5):
        optimizer.step()
        moved = recipe.training.learning_rate * (1 + 0.5 * velocity)  # the gradient, and the velocity once more
        torch.testing.assert_close(before - model.stem.weight, torch.full_like(before, moved))
        before = model.stem.weight.detach().clone()


def test_by_default_all_weights_decay_alike():
    recipe = Recipe.of(**SMALL)
    [group] = make_optimizer(recipe.build_model(10), recipe.training, CPU, 10).param_groups
    assert group["weight_decay"] == recipe.training.weight_decay


def test_from_the_command_line():
    flags = "--per-head-init False --keep-rule round --tie-rule drop --halve-squeeze False --generator-weight-decay 0"
    [recipe] = parse_train(["cifar10_condensenet50_dgc", *flags.split(), "--lasso", "paper"]).recipes
    given = {"per_head_init": False, "keep_rule": "round", "tie_rule": "drop", "halve_squeeze": False}
    given |= {"generator_weight_decay": 0.0, "lasso": "paper"}
    assert recipe == load_recipe("cifar10_condensenet50_dgc").changed(**given)


def test_from_a_file(tmp_path):
    (tmp_path / "mine.toml").write_text(
        '[model]\nper_head_init = false\nkeep_rule = "round"\n[training]\ngenerator_weight_decay = 0'
    )
    given = {"per_head_init": False, "keep_rule": "round", "generator_weight_decay": 0.0}
    assert load_recipe(tmp_path / "mine.toml") == Recipe.of("mine", **given)
    (tmp_path / "mine.toml").write_text('[model]\nkeep_rule = "floor"')
    with pytest.raises(UserError, match="`keep_rule` must be 'ceil' or 'round', got 'floor'"):
        load_recipe(tmp_path / "mine.toml")


def test_wrong_use():
    with pytest.raises(UserError, match=r"`generator_weight_decay` must be a number from 0 to 1e\+30, got -1"):
        Recipe.of(generator_weight_decay=-1)
    with pytest.raises(UserError, match="condensenet20 has no option 'per_head_init'"):
        Recipe.of(model="condensenet20", per_head_init=False).build_model(10)
    dense = Recipe.of(model="condensenet20", generator_weight_decay=0)
    with pytest.raises(UserError, match="`generator_weight_decay` is for networks with dynamic layers"):
        make_optimizer(dense.build_model(10), dense.training, CPU, 10)


def test_the_recipe_for_the_digits_trains_networks_without_generators_too():
    """Which have nothing to shrink."""
    [recipe] = parse_train(["--model", "resnet20"]).recipes
    assert recipe.training.generator_shrinkage is not None
    [group] = make_optimizer(recipe.build_model(10), recipe.training, CPU, 10).param_groups
    assert group["weight_decay"] == recipe.training.weight_decay


@pytest.mark.slow
def test_label_smoothing_raises_the_least_loss_there_is(tmp_path):
    """The loss of a certain and right answer is no longer zero; the errors are counted as before."""
    options = {"model": "condensenet20", "stages": (1,), "growth": (4,), "epochs": 1, "learning_rate": 0.0}
    losses = {}
    for smoothing in (0.0, 0.5):
        folder = tmp_path / str(smoothing)
        train(Recipe.of(**options, label_smoothing=smoothing), folder)
        (metrics,) = RunFolder(folder).metrics
        losses[smoothing] = metrics["train_loss"], metrics["train_error"], metrics["test_loss"]
    plain, smooth = losses[0.0], losses[0.5]
    assert smooth[0] != plain[0]
    assert smooth[1:] == plain[1:]  # nothing was learnt, and the test loss is not smoothed


@pytest.mark.parametrize("wrong", [{"label_smoothing": 1.0}, {"label_smoothing": -0.1}, {"cutout": -1}])
def test_refuses(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Recipe.of(**wrong)


def test_cutout_is_for_images_in_memory():
    assert Recipe.of(cutout=8).load_data().train.cutout == 8
    assert Recipe().load_data().train.cutout == 0
    assert Recipe.of(cutout=8).load_data().test.cutout == 0


@pytest.mark.slow
def test_smallest_crop_is_for_photos():
    with pytest.raises(UserError, match="`smallest_crop` is for photos"):
        Recipe.of(smallest_crop=0.5).load_data()


def test_the_end_of_the_ramp(tmp_path):
    """Head-wise, with one threshold, and as a MAC budget: at the end of the first of two epochs all is pruned."""
    small = SMALL | {"epochs": 2, "threshold_every": 1, "image_size": 8}
    for name, options in {
        "condensenet20_dgc": {},
        "condensenet20_dgcg": {},
        "condensenet20_cgnet": {"mac_budget": 0.5},
    }.items():
        shares = {}
        for end in (0.5, 0.75):
            folder = tmp_path / f"{name}{end}"
            train(Recipe.of(**small | options | {"model": name, "ramp_end": end}), folder)
            lines = RunFolder(folder).metrics
            shares[end] = [line["threshold"] if "cgnet" in name else line["pruned_share"] for line in lines]
        assert shares[0.5][0] > shares[0.75][0] + 0.05, name
        if "cgnet" not in name:
            assert shares[0.5][0] == pytest.approx(0.75, abs=0.1)


@pytest.mark.parametrize("end", [1 / 12, 0, 1.01])
def test_a_ramp_that_ends_before_it_begins(end):
    with pytest.raises(UserError, match="`ramp_end` must be above 1/12"):
        Recipe.of(ramp_end=end)


@pytest.mark.slow
def test_shrinkage_is_what_decay_does_in_a_whole_training():
    """A generator that gets no gradient, through all steps of two trainings of different length."""
    for steps, rate in ((400, 0.1), (1500, 0.05)):
        recipe = Recipe.of(**SMALL, generator_shrinkage=2.0, learning_rate=rate)
        model = recipe.build_model(10)
        bias = next(layer.generator.bias for _, layer in dynamic_layers(model))
        optimizer = make_optimizer(model, recipe.training, CPU, steps)
        for step in range(steps):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            for group in optimizer.param_groups:
                group["lr"] = cosine_learning_rate(rate, step / steps)
            optimizer.step()
        assert bias.mean().item() == pytest.approx(math.exp(-2), rel=0.1)


def test_the_paper_shrinks_by_five_point_nine():
    """As the help says: the recipe as it is, and the same decay by another name."""
    recipe = load_recipe("cifar10_condensenet50_dgc")
    steps = recipe.training.epochs * (50_000 // recipe.training.batch_size)
    same = recipe.changed(generator_shrinkage=5.9)
    assert generator_weight_decay(same.training, steps) == pytest.approx(recipe.training.weight_decay, rel=0.01)
    assert generator_weight_decay(recipe.training, steps) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generator_shrinkage": -1.0}, "`generator_shrinkage` must be a number from 0 to 1000, got -1"),
        ({"generator_shrinkage": 1.0, "learning_rate": 0.0}, "needs a learning rate above 0"),
        ({"generator_shrinkage": 1.0, "generator_weight_decay": 0.1}, "give one of them"),
    ],
)
def test_wrong_shrinkage(options, message):
    with pytest.raises(UserError, match=message):
        Recipe.of(**options)


def test_a_plan_shows_the_ramp_of_its_recipe():
    warm_up, ramp, rest = plan_training(Recipe.of(**SMALL, epochs=12, ramp_end=0.5)).stages
    assert (warm_up.epochs, ramp.epochs, rest.epochs) == pytest.approx((1, 5, 6))
