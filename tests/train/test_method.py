"""The hooks of a network's layers, called together and at their times."""

import pytest
import torch
from torch import nn

from dgconv import create_model
from dgconv.data import load_data
from dgconv.layers.method import MethodLayer
from dgconv.models import _registry
from dgconv.pruning import attach_pruning
from dgconv.train import Recipe
from dgconv.train.method import TrainingMethod
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

    def move_to(self, progress):
        self.calls.append(("move_to", progress))

    def penalty(self):
        self.calls.append("penalty")
        return self.pull**2

    def end_epoch(self, progress):
        self.calls.append(("end_epoch", progress))


class Quiet(MethodLayer):
    """Has nothing to say."""


def test_collects_all_layers():
    model = nn.Sequential(Pulled(1, 1, 1), Quiet(), nn.Sequential(Pulled(1, 1, 1)))
    method = TrainingMethod(model)
    assert method.layers == [model[0], model[1], model[2][0]]
    penalty = method.penalty()
    assert penalty == 8
    penalty.backward()
    assert model[2][0].pull.grad == 4
    method.move_to(0.25)
    method.end_epoch(0.5)
    assert model[0].calls[1:] == [("move_to", 0.25), ("end_epoch", 0.5)]


@pytest.mark.parametrize("model", [nn.Conv2d(1, 1, 1), nn.Sequential(Quiet())])
def test_no_penalty_is_none(model):
    assert TrainingMethod(model).penalty() is None


def test_adds_that_of_pruning():
    model = create_model("resnet20", width=4)
    attach_pruning(model, "ns")
    with torch.no_grad():
        expected = 1e-5 * sum(norm.weight.abs().sum() for norm in model.modules() if isinstance(norm, nn.BatchNorm2d))
    assert TrainingMethod(model).penalty().item() == pytest.approx(float(expected))


def test_called_by_the_trainer(tmp_path, monkeypatch):
    monkeypatch.setitem(_registry.METHODS, "pulled", _registry.Method(Pulled))
    options = {"stages": (1,), "growth": (4,), "image_size": 8, "batch_size": 512, "epochs": 2}
    recipe = Recipe(model="condensenet20_pulled", **options, weight_decay=0, momentum=0)
    run = Run(recipe, tmp_path, load_data("digits", image_size=8), torch.device("cpu"))
    layer = next(layer for layer in run.model.modules() if isinstance(layer, Pulled))
    for _ in run.advance():
        pass
    step, evaluation = ["forward", "penalty"], ["forward"] * 6  # of 360 images, 64 at once
    assert layer.calls == [
        *[("move_to", 0.0), *step, ("move_to", 0.25), *step],
        *[("move_to", 0.5), ("end_epoch", 0.5), *evaluation],
        *[("move_to", 0.5), *step, ("move_to", 0.75), *step],
        *[("move_to", 1.0), ("end_epoch", 1.0), *evaluation],
    ]
    rates = [0.1, 0.1 * (1 + 2**-0.5) / 2, 0.05, 0.1 * (1 - 2**-0.5) / 2]  # the cosine
    expected = 2.0
    for rate in rates:
        expected -= rate * 2 * expected
    assert layer.pull.item() == pytest.approx(expected), "moved by the penalty and nothing else"


def test_weight_decay_leaves_alone_what_a_method_says(tmp_path):
    """CGNet's thresholds, and nothing else."""
    recipe = Recipe(model="resnet20_cgnet", width=8, epochs=1, weight_decay=0.1)
    run = Run(recipe, tmp_path, recipe.load_data(), torch.device("cpu"))
    decayed, undecayed = run.optimizer.param_groups
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.1, 0)
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    assert {names[id(p)].rpartition(".")[2] for p in undecayed["params"]} == {"threshold"}
    assert len(decayed["params"]) + len(undecayed["params"]) == len(names)
