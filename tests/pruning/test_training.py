"""Each method through the trainer, on the digits: it prunes, resumes exactly, and its cut network agrees."""

import json
import shutil

import pytest
import torch
from trained_runs import stop_after

from dgconv import count_macs, create_model, save_model
from dgconv.cli import main
from dgconv.data import load_data
from dgconv.errors import UserError
from dgconv.layers.method import pruning_methods
from dgconv.pruning import cut, pruning_of
from dgconv.runs import RunFolder
from dgconv.train import Recipe, evaluate, load_recipe, resume, train
from dgconv.train.run import Run

SMALL = {"model": "resnet20", "width": 8, "image_size": 8, "batch_size": 512, "epochs": 2}  # of 2 steps


@pytest.mark.slow
@pytest.mark.parametrize("method", pruning_methods())
def test_trains_prunes_and_cuts(tmp_path, method, capsys):
    recipe = Recipe.of(**SMALL, prune=method, prune_budget=0.5)
    result = train(recipe, tmp_path / "run")
    assert pruning_of(result.model).is_final
    smaller = cut(result.model)
    assert count_macs(smaller).macs == pytest.approx(0.5 * count_macs(result.model).macs, rel=0.05)
    images = next(iter(result.data.test.batches(64, train=False)))[0]
    torch.testing.assert_close(smaller(images), result.model(images), rtol=1e-5, atol=1e-5)
    again = evaluate(smaller, result.data.test)
    assert (again.error, again.loss) == pytest.approx((result.evaluation.error, result.evaluation.loss), rel=1e-4)
    config = RunFolder(tmp_path / "run").config["model"]
    assert (config["prune"], config["prune_budget"]) == (method, 0.5)
    main(["macs", str(tmp_path / "run"), "--json"])
    assert json.loads(capsys.readouterr().out)["macs"] == count_macs(smaller, result.data.input_size).macs


@pytest.mark.slow
def test_learns(tmp_path):
    recipe = Recipe.of(**SMALL | {"batch_size": 32, "epochs": 4}, prune="sfp", prune_rate=0.3)
    assert train(recipe, tmp_path / "run").evaluation.error < 30


@pytest.mark.slow
@pytest.mark.parametrize("method", pruning_methods())
def test_resumed_it_ends_the_same(tmp_path, method):
    recipe = Recipe.of(**SMALL, prune=method, prune_rate=0.5)
    train(recipe, tmp_path / "whole")
    expected = RunFolder(tmp_path / "whole").weights()
    data = load_data("digits", image_size=8)
    for steps in (1, 2, 3):
        folder = tmp_path / str(steps)
        stop_after(steps, recipe, folder, data)
        resume(folder)
        weights = RunFolder(folder).weights()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in weights.items()), steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prune_rate": 0.5}, "say also how, with `prune`"),
        ({"prune": "l1", "prune_rate": 1.5}, "from 0 to below 1, got 1.5"),
        ({"prune": "l1", "prune_rate": 0.5, "prune_budget": 0.5}, "not both"),
    ],
)
def test_wrong_recipes(options, message):
    with pytest.raises(UserError, match=message):
        Recipe.of(**options)


def test_recipe_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[model]\nname = "resnet20"\nprune = "fpgm"\nprune_rate = 0.4\n')
    recipe = load_recipe(path)
    assert recipe.model.options == {"prune": "fpgm", "prune_rate": 0.4}
    path.write_text('[model]\nname = "resnet20"\nprune = "magic"\n')
    with pytest.raises(UserError, match=rf"`prune` must be {' or '.join(map(repr, pruning_methods()))}, got 'magic'"):
        load_recipe(path)


def test_pruning_starts_from_trained_weights(tmp_path):
    model = create_model("resnet20", num_classes=10, width=8)
    save_model(model, tmp_path / "dense")
    file = tmp_path / "dense" / "model.safetensors"
    recipe = Recipe.of(**SMALL | {"epochs": 1, "learning_rate": 0.0}, prune="l1", prune_rate=0.5, seed=3)
    data = load_data("digits", image_size=8)
    for source in (tmp_path / "dense", file):
        run = Run(recipe.changed(init_from=str(source)), tmp_path, data, torch.device("cpu"))
        assert torch.equal(run.model.layer3[1].conv1.weight, model.layer3[1].conv1.weight)
        assert not pruning_of(run.model).is_final
    with pytest.raises(UserError, match=r"does not fit the network"):
        Run(recipe.changed(width=16, init_from=str(file)), tmp_path, data, torch.device("cpu"))
    with pytest.raises(UserError, match=r"cannot be read as a safetensors file"):
        Run(recipe.changed(init_from=str(tmp_path / "no.safetensors")), tmp_path, data, torch.device("cpu"))


@pytest.mark.slow
def test_what_it_started_from_is_not_needed_to_go_on(tmp_path):
    save_model(create_model("resnet20", num_classes=10, width=8), tmp_path / "dense")
    recipe = Recipe.of(**SMALL, prune="fpgm", prune_rate=0.5, init_from=str(tmp_path / "dense"))
    (tmp_path / "run").mkdir()
    run = Run(recipe, tmp_path / "run", load_data("digits", image_size=8), torch.device("cpu"))
    next(run.advance())
    run.save()
    run.writer.wait()
    shutil.rmtree(tmp_path / "dense")
    assert pruning_of(resume(tmp_path / "run").model).is_final
