"""What acts on a network while it trains: all of it called together, and at its time."""

import pytest
import torch
from torch import nn

from dgconv import create_model
from dgconv.data import load_data
from dgconv.layers.controller import Controller, Controllers, Place
from dgconv.layers.method import METHODS, Method, MethodLayer
from dgconv.pruning import attach_pruning
from dgconv.train import Recipe, controllers_of
from dgconv.train.run import Run


class Pulled(MethodLayer):
    """Says where it is called, and pulls its only weight to zero."""

    def __init__(self, *args, **kwargs):
        super().__init__()
        self.conv = nn.Conv2d(*args, **kwargs)
        self.pull = nn.Parameter(torch.tensor(2.0))
        self.calls = []

    def forward(self, x):
        self.calls.append("forward")
        return self.conv(x)

    def before_step(self, progress):
        self.calls.append(("before_step", progress))

    def penalty(self, saliencies=()):
        self.calls.append("penalty")
        return self.pull**2

    def after_update(self):
        self.calls.append("after_update")

    def after_step(self, saliencies, place):
        self.calls.append(("after_step", place))

    def end_epoch(self, progress):
        self.calls.append(("end_epoch", progress))


class Quiet(MethodLayer):
    """Has nothing to say."""


def test_collects_all_layers():
    model = nn.Sequential(Pulled(1, 1, 1), Quiet(), nn.Sequential(Pulled(1, 1, 1)))
    controllers = controllers_of(model)
    assert controllers.members == [model[0], model[1], model[2][0]]
    penalty = controllers.penalty()
    assert penalty == 8
    penalty.backward()
    assert model[2][0].pull.grad == 4
    controllers.before_step(0.25)
    controllers.end_epoch(0.5)
    assert model[0].calls[1:] == [("before_step", 0.25), ("end_epoch", 0.5)]


@pytest.mark.parametrize("model", [nn.Conv2d(1, 1, 1), nn.Sequential(Quiet())])
def test_no_penalty_is_none(model):
    assert controllers_of(model).penalty() is None


def test_adds_that_of_pruning():
    model = create_model("resnet20", width=4)
    attach_pruning(model, "ns")
    with torch.no_grad():
        expected = 1e-5 * sum(norm.weight.abs().sum() for norm in model.modules() if isinstance(norm, nn.BatchNorm2d))
    assert controllers_of(model).penalty().item() == pytest.approx(float(expected))


class Remembers(Controller):
    """Has a state, and something to tell at the end of an epoch."""

    def __init__(self, value, told=None):
        self.value, self.told = torch.tensor(value), told

    def end_epoch(self, progress):
        return self.told

    def state(self):
        return {"value": self.value}

    def load_state(self, state):
        self.value = state["value"]


def test_each_gets_its_own_state_back():
    kept = Controllers([Remembers(1.0), Controller(), Remembers(2.0)]).state()
    others = [Remembers(0.0), Controller(), Remembers(0.0)]
    Controllers(others).load_state(kept)
    assert (others[0].value, others[2].value) == (1, 2)


@pytest.mark.parametrize(("told", "expected"), [((None, None), None), ((0.0, None), 0.0), ((1.0, 2.0), 2.0)])
def test_an_epoch_tells_what_the_last_of_them_has_set(told, expected):
    assert Controllers([Remembers(0.0, value) for value in told]).end_epoch(1.0) == expected


def test_called_by_the_trainer(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "pulled", Method("pulled", "Pulled", Pulled, options={}, how_it_runs="as it trains"))
    options = {"stages": (1,), "growth": (4,), "image_size": 8, "batch_size": 512, "epochs": 2}
    recipe = Recipe.of(model="condensenet20_pulled", **options, weight_decay=0, momentum=0)
    run = Run(recipe, tmp_path, load_data("digits", image_size=8), torch.device("cpu"))
    layer = next(layer for layer in run.model.modules() if isinstance(layer, Pulled))
    for _ in run.advance():
        pass

    def step(progress, epoch, number):
        place = Place(epoch, number, steps=2)
        return [("before_step", progress), "forward", "penalty", "after_update", ("after_step", place)]

    def end(progress):
        evaluation = ["forward"] * 6  # of 360 images, 64 at once
        return [("before_step", progress), ("end_epoch", progress), *evaluation]

    first, second = [*step(0.0, 0, 0), *step(0.25, 0, 1)], [*step(0.5, 1, 0), *step(0.75, 1, 1)]
    assert layer.calls == [*first, *end(0.5), *second, *end(1.0)]
    rates = [0.1, 0.1 * (1 + 2**-0.5) / 2, 0.05, 0.1 * (1 - 2**-0.5) / 2]  # the cosine
    expected = 2.0
    for rate in rates:
        expected -= rate * 2 * expected
    assert layer.pull.item() == pytest.approx(expected), "moved by the penalty and nothing else"


def test_weight_decay_leaves_alone_what_a_method_says(tmp_path):
    """CGNet's thresholds, and nothing else."""
    recipe = Recipe.of(model="resnet20_cgnet", width=8, epochs=1, weight_decay=0.1)
    run = Run(recipe, tmp_path, recipe.load_data(), torch.device("cpu"))
    decayed, undecayed = run.optimizer.param_groups
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.1, 0)
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    assert {names[id(p)].rpartition(".")[2] for p in undecayed["params"]} == {"threshold"}
    assert len(decayed["params"]) + len(undecayed["params"]) == len(names)
