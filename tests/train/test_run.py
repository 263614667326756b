"""One run, step by step: what it trains on, what it tells and what it writes."""

import math
from copy import deepcopy
from dataclasses import replace
from itertools import count, islice
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from dgconv.data import load_data
from dgconv.data.sample import sample
from dgconv.models.storage import snapshot
from dgconv.runs import RunFolder
from dgconv.runs.checkpoint import load_checkpoint
from dgconv.train import Recipe, set_progress
from dgconv.train import run as run_module
from dgconv.train.diagnose import Diverged
from dgconv.train.losses import LassoReading, SaliencyLosses, angle_loss, lasso_loss, take_saliencies
from dgconv.train.mac_budget import MacBudget
from dgconv.train.optimizer import generator_weight_decay
from dgconv.train.run import Run
from dgconv.train.schedule import cosine_learning_rate
from dgconv.train.threshold import GlobalThreshold, macs_per_saliency

TINY = {"stages": (1,), "growth": (8,), "image_size": 8, "batch_size": 512}  # two steps an epoch


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", image_size=8)


@pytest.fixture
def begin(tmp_path, digits):
    """A run to be advanced step by step."""
    return lambda **options: Run(Recipe.of(**TINY | options), tmp_path, digits, torch.device("cpu"))


def member(run, kind):
    """The controller of a kind that acts on a run."""
    return next(controller for controller in run.controllers.members if isinstance(controller, kind))


@pytest.mark.parametrize("reading", get_args(LassoReading))
def test_a_step_goes_down_all_losses_together(begin, reading):
    plain = {"momentum": 0.0, "weight_decay": 0.0, "label_smoothing": 0.1}
    run = begin(**plain, lasso_weight=0.3, lasso=reading, angle_weight=0.2, heads=2)
    model = deepcopy(run.model).train()
    next(run.advance())
    x, target = run.batch
    set_progress(model, 0)
    loss = cross_entropy(model(x), target, label_smoothing=0.1)
    saliencies = take_saliencies(model)
    (loss + 0.3 * lasso_loss(saliencies, reading) + 0.2 * angle_loss(saliencies)).backward()
    for new, old in zip(run.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(new, old - 0.1 * old.grad)
    assert run.mean_loss == pytest.approx(loss.item()), "of an image, and of its label alone"


@pytest.mark.parametrize(
    ("model", "asked", "weight"),
    [("dgc", None, 0.0), ("dgc", 0.5, 0.5), ("dgcg", None, 1e-4), ("dgcg", 0.0, 0.0)],
)
def test_the_angle_loss_goes_with_the_global_threshold_unless_asked_otherwise(begin, model, asked, weight):
    losses = member(begin(model=f"condensenet20_{model}", angle_weight=asked), SaliencyLosses)
    assert losses.angle_weight == weight


@pytest.mark.slow
def test_the_global_threshold_is_kept_as_the_recipe_says(begin):
    options = {"model": "condensenet20_dgcg", "threshold_batches": 1, "threshold_every": 2, "epochs": 4}
    run = begin(**options, threshold_share="macs", ramp_end=0.5)
    threshold = member(run, GlobalThreshold)
    assert threshold.weights == macs_per_saliency(run.model, (3, 8, 8))
    assert member(begin(**options), GlobalThreshold).weights is None
    libraries, update = [], threshold.end_epoch
    threshold.end_epoch = lambda progress: (libraries.append(len(threshold.library)), update(progress))[1]
    thresholds = [metrics.threshold for metrics in run.advance() if metrics]
    assert libraries == [0, 1, 0, 1]
    assert [threshold is not None for threshold in thresholds] == [False, True, False, True]


def test_the_shrinkage_is_that_of_the_whole_training(begin):
    recipe = begin(generator_shrinkage=2.0, epochs=3).recipe
    others, generators = begin(generator_shrinkage=2.0, epochs=3).optimizer.param_groups
    assert others["weight_decay"] == recipe.training.weight_decay
    assert generators["weight_decay"] == generator_weight_decay(recipe.training, steps=6)


def test_what_is_told_of_an_epoch(begin):
    run = begin(epochs=3, pruning_rate=0.6, ramp_end=0.5, stages=(1, 1), growth=(8, 8))
    advance, told = run.advance(), []
    for _ in range(3):
        assert [next(advance), next(advance)] == [None, None]
        loss_sum, wrong, _ = run.sums.tolist()
        told.append(next(advance))
        assert told[-1].train_loss == pytest.approx(loss_sum / 1024), "of those that fill two batches"
        assert told[-1].train_error == pytest.approx(100 * wrong / 1024)
        assert told[-1].train_error <= 100, "each is counted anew"
        assert told[-1].test_error_top5 == run.evaluation.error_top5 < told[-1].test_error
    assert list(advance) == []
    assert [metrics.epoch for metrics in told] == [1, 2, 3]
    assert [metrics.learning_rate for metrics in told] == [cosine_learning_rate(0.1, last / 6) for last in (1, 3, 5)]
    assert [metrics.target_pruned_share for metrics in told] == pytest.approx([0.6 * 0.6, 0.6, 0.6])
    assert not run.model.training, "it is for use"


def test_an_epoch_is_judged_with_the_gates_as_they_are_at_its_end(begin):
    metrics = next(metrics for metrics in begin(epochs=4).advance() if metrics)
    assert metrics.target_pruned_share == pytest.approx(0.75 / 4)
    assert metrics.pruned_share == pytest.approx(0.75 / 4)


def test_the_seconds_of_an_epoch_go_on_where_it_was_stopped(begin, tmp_path, monkeypatch):
    """By a clock that goes on by one whenever it is read."""
    clock = count()
    monkeypatch.setattr(run_module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    whole = begin(epochs=3)
    first, second = [metrics for metrics in islice(whole.advance(), 6) if metrics]
    whole.writer.wait()  # or it would write over what the next one writes to the same folder
    assert (first.first_step_seconds, first.seconds, first.images_per_second) == (1, 6, 1024 / 5)
    assert (second.first_step_seconds, second.seconds, second.images_per_second) == (None, 4, 1024 / 3)
    stopped = begin(epochs=3)
    next(stopped.advance())
    stopped.save()
    stopped.writer.wait()
    resumed = Run(stopped.recipe, tmp_path, stopped.data, stopped.device, load_checkpoint(tmp_path))
    assert next(metrics for metrics in resumed.advance() if metrics).seconds == 3 + 5


def test_the_best_weights_are_those_of_the_first_epoch_that_was_best(begin, tmp_path):
    run = begin(epochs=4)
    evaluation, errors, weights = run.evaluator(run.data.test), iter([50.0, 40.0, 45.0, 40.0]), []
    run.evaluator.begin = lambda split: lambda: replace(evaluation, error=next(errors))
    for metrics in run.advance():
        if metrics:
            weights.append(snapshot(run.model))
    best = load_file(tmp_path / "best.safetensors")
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in best.items())


def test_a_network_that_diverges_says_where_and_keeps_its_weights(begin, tmp_path):
    run = begin(epochs=2)
    advance = run.advance()
    while not next(advance):
        pass
    run.model.stem.weight.data[0] = torch.nan
    with pytest.raises(Diverged, match=r"epoch 2, step 1: the first layer that went bad is 'stem'.*\(now 0\.1\)"):
        next(advance)
    assert load_file(tmp_path / "diverged.safetensors")["stem.weight"][0].isnan().all()


def test_a_loss_that_is_no_number_is_found_at_the_end_of_an_epoch_at_the_latest(begin):
    """A dense network has no layer that would meet it before."""
    run = begin(model="condensenet20", epochs=1)
    run.model.stem.weight.data[0] = torch.nan
    steps = run.advance()
    assert [next(steps), next(steps)] == [None, None]
    with pytest.raises(Diverged, match=r"in epoch 1, .* the first layer that went bad is 'stem'"):
        next(steps)


def test_mixed_precision_is_for_training_and_evaluation(begin):
    run, kinds = begin(epochs=1, precision="bfloat16"), set()
    run.model.register_forward_hook(lambda model, args, out: kinds.add((model.training, out.dtype)))
    assert [bool(metrics) for metrics in run.advance()] == [False, False, True]
    assert kinds == {(True, torch.bfloat16), (False, torch.bfloat16)}


def test_a_mac_budget_is_kept_on_the_same_training_images(begin, digits):
    run, measured = begin(model="condensenet20_cgnet", mac_budget=0.5, epochs=2), []
    member(run, MacBudget).update = lambda *given: (measured.append(given), 0.7)[1]
    assert [metrics.threshold for metrics in run.advance() if metrics] == [0.7, 0.7]
    ((images, half), (again, end)) = measured
    assert (half, end) == (0.5, 1.0)
    assert torch.equal(images, again)
    assert torch.equal(images, next(sample(digits.train, 128)))


def test_a_mac_budget_out_of_reach_is_told_before_the_first_step(begin, caplog):
    begin(model="condensenet20_cgnet", mac_budget=0.01)
    assert "even with every gate closed it takes" in caplog.text


def test_fewer_images_than_a_batch_are_one_step(begin, digits):
    run = begin(epochs=1, batch_size=2000)
    step, metrics = run.advance()
    assert step is None
    assert metrics.learning_rate == 0.1


def test_each_seed_and_each_epoch_has_an_order_of_its_own(begin):
    orders = []
    for seed in (0, 1):
        run = begin(seed=seed, epochs=2)
        orders += [tuple(run.batch[1].tolist()) for metrics in run.advance() if metrics is None]
    assert len(set(orders)) == len(orders) == 8


def test_a_new_network_has_seen_nothing(begin):
    """Though a copy of it has tried whether it can be trained."""
    norms = [module for module in begin().model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert all(norm.num_batches_tracked == 0 for norm in norms)


def test_images_that_overflow_in_an_evaluation_do_not_end_the_training(begin, tmp_path):
    run = begin(epochs=2)
    steps = run.advance()
    assert [next(steps) for _ in range(run.steps_per_epoch)] == [None, None]
    norms = [module for module in run.model.modules() if isinstance(module, nn.BatchNorm2d)]
    means = [norm.running_mean.clone() for norm in norms]
    for norm in norms:
        norm.running_mean.fill_(-1e38)  # as if they had seen nothing like the test images
    first = next(steps)
    for norm, mean in zip(norms, means, strict=True):
        norm.running_mean.copy_(mean)
    *_, last = steps
    assert (first.epoch, last.epoch) == (1, 2)
    assert not math.isfinite(first.test_loss)
    assert math.isfinite(last.test_loss)
    assert [line["test_loss"] is None for line in RunFolder(tmp_path).metrics] == [True, False]
    assert [line["overflowing_images"] for line in RunFolder(tmp_path).metrics] == [run.evaluation.images, 0]


def test_nor_do_they_keep_a_run_that_is_done_from_being_looked_at_again(begin, tmp_path, digits):
    run = begin(epochs=1)
    steps = run.advance()
    for _ in range(run.steps_per_epoch):
        next(steps)
    for module in run.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.fill_(-1e38)
    (metrics,) = steps
    again = Run(run.recipe, tmp_path, digits, torch.device("cpu"), load_checkpoint(tmp_path))
    assert not list(again.advance())
    assert again.evaluation.error == metrics.test_error
