"""The plan of a training: every recipe has one, and it fits the paper."""

import gc
import json
import weakref
from dataclasses import asdict

import pytest
import torch
from PIL import Image
from torch import nn

from dgconv.analysis.kept_costs import cost_of, describe_network, kept_costs
from dgconv.analysis.plan import StepTime, agreement_with, count_cost, estimate_memory, plan_training
from dgconv.cli import main
from dgconv.errors import UserError
from dgconv.layers.method import pruning_methods
from dgconv.train.recipe import Recipe
from dgconv.train.recipe_files import Reported, list_recipes, load_recipe, reported_for, reported_of

# With a global threshold "the actual pruning rate is slightly different to the target" (the paper); ours is the target.
MEASURED = {"imagenet_resnet18_dgcg", "imagenet_condensenet74_dgcg", "imagenet_condensenet74_dgcg_angle0"}
# What FBS saves at the next layer only images tell; FPGM saves what SFP does, and its figure is LCCN's.
SAVES_OTHERWISE = {"imagenet_resnet18_fbs", "imagenet_resnet18_fpgm"}
# The same networks are there for CIFAR-10.
AGAIN = [f"cifar100_{network}" for network in ("vgg16_l1", "vgg19_ns", "resnet164_ns", "densenet40_ns")]
# No code exists for these: squeeze, and on ImageNet the pruning rate, were chosen so that the MACs fit. No proof.
FITTED = {"cifar10_mobilenetv2_dgc_1", "imagenet_mobilenetv2_dgc"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in list_recipes() if name not in AGAIN])
def test_every_recipe_passes_a_dry_run_and_its_macs_match_the_paper(name, capsys, monkeypatch):
    monkeypatch.setattr("dgconv.cli.train.time_step", lambda plan, device: StepTime(1.0, plan.steps, device, 2, 2))
    main(["train", name, "--dry-run", "--json"])
    plan = json.loads(capsys.readouterr().out)
    recipe, reported = load_recipe(name), reported_of(name)
    assert plan["recipe"] == json.loads(json.dumps(recipe.to_dict()))
    images = {"digits": 1437, "folder": 1_281_167}.get(recipe.data.name, 50_000)
    assert plan["steps_per_epoch"] == images // recipe.training.batch_size
    assert plan["steps"] == plan["steps_per_epoch"] * recipe.training.epochs
    assert plan["memory"]["activations"] > 0
    assert plan["memory"]["state"] == 12 * plan["cost"]["parameters"]
    epochs = sum(stage["epochs"] for stage in plan["stages"])
    assert epochs == (pytest.approx(recipe.training.epochs) if "_dgc" in recipe.model.name else 0)
    has_groups = recipe.model.name in ("shufflenet", "igcv3")  # of its own
    is_dense = "_" not in recipe.model.name and "prune" not in recipe.model.options and not has_groups
    for convention, macs in plan["cost"]["macs"].items():
        assert (macs == plan["cost"]["dense_macs"][convention]) == is_dense
    kept = kept_costs().get(describe_network(recipe, recipe.data.facts()))
    assert kept, "write them anew: python -m reproduce costs"
    if "_flgc" in name:  # how large its groups are is drawn
        assert plan["cost"]["macs"] == pytest.approx(kept.macs, rel=0.02)
    else:
        assert asdict(kept) == plan["cost"], "write them anew: python -m reproduce costs"

    assert plan["reported"] == (reported and asdict(reported))
    if reported is None or (reported.macs is None and reported.saving is None):
        assert plan["agreement"] is None
        return
    if name in SAVES_OTHERWISE:
        assert reported.note
        return
    is_saving = reported.saving is not None and name not in MEASURED
    assert abs(plan["agreement"]["difference"]) < (1.0 if is_saving else 1.5)
    assert reported.note or name not in MEASURED | FITTED, "what is measured or fitted says so"


def test_memory_by_hand():
    """What autograd keeps: the input of the convolution, the input and output of ReLU's neighbours, each once."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    memory = estimate_memory(model, Recipe.of(batch_size=100).training, 16)
    an_image = 4 * (3 * 256 + 8 * 256 + 8 + 5) + 8  # image, ReLU's output, pooled, log-softmax; the label
    assert memory.activations == pytest.approx(100 * an_image, rel=0.01)
    assert memory.state == 3 * 4 * (3 * 8 * 9 + 8 + 8 * 5 + 5)
    assert memory.total == memory.state + memory.activations
    assert estimate_memory(model, Recipe.of(batch_size=100, momentum=0).training, 16).state == memory.state * 2 / 3


def test_memory_grows_with_the_batch_and_shrinks_with_the_precision():
    def activations(**options):
        recipe = Recipe.of(stages=(1, 1), growth=(8, 8), **options)
        return estimate_memory(recipe.build_model(10), recipe.training, 16).activations

    assert activations(batch_size=256) == pytest.approx(4 * activations(batch_size=64), rel=0.02)
    assert activations(batch_size=64, precision="bfloat16") < 0.8 * activations(batch_size=64)


def test_leaves_the_number_of_threads_as_it_was():
    before = torch.get_num_threads()
    count_cost(Recipe(), Recipe().data.facts())
    assert torch.get_num_threads() == before


def test_the_stages_of_the_schedule():
    stages = plan_training(load_recipe("digits")).stages
    assert [stage.epochs for stage in stages] == pytest.approx([2.5, 20, 7.5])
    assert stages[1].what == "the pruned share rises to 0.75"


def test_a_folder_is_counted_if_it_is_there(tmp_path):
    recipe = Recipe.of(data="folder", data_dir=str(tmp_path / "nowhere"))
    assert recipe.data.facts().source == "assumed"
    assert recipe.data.facts().classes == 1000
    for split, count in (("train", 3), ("test", 1)):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (8, 8)).save(tmp_path / split / name / f"{number}.png")
    data = Recipe.of(data="folder", data_dir=str(tmp_path), image_size=64).data.facts()
    assert (data.train_images, data.classes, data.side, data.source) == (6, 2, 64, "counted")


def test_wrong_data():
    with pytest.raises(UserError, match="unknown data set 'cifar'"):
        Recipe.of(data="cifar").data.facts()
    with pytest.raises(UserError, match="image size 64 is not 32, the size of cifar10"):
        Recipe.of(data="cifar10", image_size=64).data.facts()
    with pytest.raises(UserError, match="'parquet' needs `data_dir`"):
        Recipe.of(data="parquet").data.facts()
    assert Recipe.of(image_size=8).data.facts().side == 8


def test_reported_figures_go_with_the_unchanged_network():
    recipe = load_recipe("cifar10_condensenet50_dgc_rate33")
    assert reported_for(recipe).error == 5.83
    assert reported_for(recipe.changed(epochs=3, data_dir="there")).error == 5.83
    assert reported_for(recipe.changed(pruning_rate=0.5)) is None
    assert reported_for(recipe.changed(name="")) is None


def test_a_network_that_no_recipe_has_is_counted():
    recipe = load_recipe("digits").changed(stages=(1, 1), growth=(4, 8))
    assert cost_of(recipe) == count_cost(recipe, recipe.data.facts())
    assert cost_of(recipe) != cost_of(load_recipe("digits"))


def test_no_cost_is_kept_of_networks_that_are_gone():
    recipes = map(load_recipe, list_recipes())
    assert set(kept_costs()) == {describe_network(recipe, recipe.data.facts()) for recipe in recipes}


def test_compares_by_the_closer_convention():
    cost = count_cost(load_recipe("digits"), load_recipe("digits").data.facts())
    assert agreement_with(cost, None) is None
    assert agreement_with(cost, Reported("a figure", error=3.0)) is None
    for convention in ("paper", "authors"):
        agreement = agreement_with(cost, Reported("here", macs=1.01 * cost.macs[convention]))
        assert agreement.convention == convention
        assert agreement.difference == pytest.approx(100 * (1 / 1.01 - 1))
        assert agreement_with(cost, Reported("here", saving=cost.saving(convention))).difference == 0


def test_a_network_whose_memory_was_estimated_is_let_go():
    recipe = Recipe.of(model="condensenet20_dgc")
    model = recipe.build_model(10)
    weight = weakref.ref(model.stem.weight)  # a graph that keeps itself would keep it
    estimate_memory(model, recipe.training, 8)
    del model
    gc.collect()
    assert weight() is None


@pytest.mark.slow
@pytest.mark.parametrize("method", pruning_methods())
def test_of_a_network_that_will_be_pruned_what_will_be_left(method):
    plan = plan_training(Recipe.of(model="resnet20", width=8, image_size=8, prune=method, prune_budget=0.5))
    dense = plan_training(Recipe.of(model="resnet20", width=8, image_size=8)).cost
    assert plan.cost.macs["paper"] == pytest.approx(0.5 * dense.macs["paper"], rel=0.05)
    assert plan.cost.dense_macs == dense.macs
