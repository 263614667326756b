"""Another rate after training, and budgets by how sure the network is."""

import copy
import json

import pytest
import torch

from dgconv import dynamic_layers
from dgconv.analysis.budget import Pass, run_at_rate, spend_by_margin
from dgconv.analysis.rate import at_rate, calibration_images, set_rate
from dgconv.cli import main
from dgconv.cost.image_cost import ImageCost
from dgconv.cost.macs import count_macs
from dgconv.errors import UserError
from dgconv.layers import keep_count
from dgconv.models import load_model
from dgconv.train import evaluate


@pytest.fixture(scope="module")
def images(head_run):
    return calibration_images(head_run.data.train)[:256]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.4, 0.6, 0.9])
def test_another_rate_is_really_reached_and_left_again(run, images, rate):
    def options():
        momenta = [norm.momentum for norm in run.model.modules() if isinstance(norm, torch.nn.BatchNorm2d)]
        return momenta, [layer.pruning_rate for _, layer in dynamic_layers(run.model)]

    before, options_before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}, options()
    trained = evaluate(run.model, run.data.test)
    with at_rate(run.model, rate, images):
        there = evaluate(run.model, run.data.test)
        if not run.has_global_gate:
            for _, layer in dynamic_layers(run.model):
                assert int(layer.gate.keep) == keep_count(layer.in_channels, rate)
    assert there.pruned_share == pytest.approx(rate, abs=0.05)
    assert all(torch.equal(before[name], tensor) for name, tensor in run.model.state_dict().items())
    assert options() == options_before
    assert evaluate(run.model, run.data.test) == trained


@pytest.mark.slow
def test_a_loaded_count_is_no_rate_that_is_there(head_run, images):
    """A state_dict brings the gates' counts along, but not the target that they belong to."""
    model = load_model(head_run.folder)
    target = model.get_submodule(next(name for name, _ in dynamic_layers(model))).pruning_rate
    other = copy.deepcopy(model)
    for _, layer in dynamic_layers(other):
        layer.set_pruning_rate(0.25)
    model.load_state_dict(other.state_dict())
    set_rate(model, target, images)
    assert all(int(layer.gate.keep) == keep_count(layer.in_channels, target) for _, layer in dynamic_layers(model))


@pytest.mark.slow
def test_adapted_norms_are_what_makes_another_rate_usable(head_run, images):
    """With the old statistics the answers are far worse than with new ones."""
    model = load_model(head_run.folder)
    for _, layer in dynamic_layers(model):
        layer.set_pruning_rate(0.25)
    old = evaluate(model, head_run.data.test).loss
    for _, layer in dynamic_layers(model):
        layer.set_pruning_rate(0.75)
    set_rate(model, 0.25, images)
    assert evaluate(model, head_run.data.test).loss < 0.5 * old


@pytest.mark.slow
def test_the_trained_rate_is_the_trained_network(run, images):
    passed = run_at_rate(run.model, run.data.test, run.trained_rate, images)
    assert passed.error == evaluate(run.model, run.data.test).error
    assert len(passed.correct) == len(run.data.test)
    model = copy.deepcopy(run.model).train()
    assert run_at_rate(model, run.data.test, run.trained_rate, images).error == passed.error
    assert model.training, "left as it was"


@pytest.mark.slow
def test_cost_of_single_images_averages_to_the_cost_of_the_batch(run):
    x = next(iter(run.data.test.batches(32, train=False)))[0]
    with ImageCost(run.model, (3, 16, 16)) as cost, torch.no_grad():
        run.model(x)
    assert cost.macs.shape == (32,)
    assert float(cost.macs.mean()) == pytest.approx(count_macs(run.model, images=x).macs, rel=1e-6)
    alone = [count_macs(run.model, images=image[None]).macs for image in x[:3]]
    assert cost.macs[:3].tolist() == pytest.approx(alone, rel=1e-6)
    assert (cost.macs.unique().numel() > 1) == run.has_global_gate, "head-wise gates spend the same on every image"


def test_spending_by_hand():
    cheap = Pass(
        0.9, torch.tensor([True, False, False, True]), torch.tensor([0.9, 0.2, 0.5, 0.0]), torch.full((4,), 10.0)
    )
    dear = Pass(
        0.5, torch.tensor([True, True, True, False]), torch.tensor([0.9, 0.9, 0.9, 0.9]), torch.full((4,), 30.0)
    )
    never, some, always = spend_by_margin([cheap, dear], [0.0, 0.5, 2.0])
    assert (never.error, never.macs, never.stopped) == (50.0, 10.0, [1.0, 0.0])
    assert (some.error, some.macs, some.stopped) == (50.0, 10.0 + 30 * 2 / 4, [0.5, 0.5])  # one put right, one spoiled
    assert (always.error, always.macs, always.stopped) == (25.0, 40.0, [0.0, 1.0])


@pytest.mark.slow
def test_spending_on_a_real_network(run):
    passes = [run.pass_at(rate) for rate in (run.trained_rate, 0.5, 0.25)]
    spendings = spend_by_margin(passes)
    assert spendings == spend_by_margin(passes)
    assert spendings[0].error == pytest.approx(passes[0].error)
    assert spendings[0].macs == pytest.approx(passes[0].mean_macs)
    assert [s.macs for s in spendings] == sorted(s.macs for s in spendings)
    assert spendings[-1].macs <= sum(p.mean_macs for p in passes) * (1 + 1e-9)
    assert all(sum(s.stopped) == pytest.approx(1) for s in spendings)
    assert 0 < spendings[len(spendings) // 2].stopped[1] < 1
    with pytest.raises(UserError, match="from a high to a low"):
        spend_by_margin(passes[::-1])


def test_eval_at_another_rate(head_folder, head_run, capsys):
    def evaluated(*options):
        main(["eval", str(head_folder), "--json", *options])
        return json.loads(capsys.readouterr().out)

    plain, same, dearer = evaluated(), evaluated("--pruning-rate", "0.75"), evaluated("--pruning-rate", "0.5")
    assert plain == same
    assert dearer["pruning_rate"] == pytest.approx(0.5, abs=0.02)
    assert plain["macs"]["paper"] < dearer["macs"]["paper"] < plain["dense_macs"]["paper"] * 1.1
    assert dearer["error"] == pytest.approx(head_run.pass_at(0.5).error)
    with pytest.raises(SystemExit):
        main(["eval", str(head_folder), "--pruning-rate", "1"])
    assert "must be in [0, 1)" in capsys.readouterr().err
