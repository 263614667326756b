"""A method in a file of its own, outside the package: importing it is all it takes, no list is edited."""

import json
import sys
from importlib import import_module

import pytest
import torch

from dgconv import count_macs, create_model, list_models
from dgconv.analysis.figures.tradeoff import legend_of
from dgconv.cli import main
from dgconv.compare import expected_share, options_for_budget
from dgconv.compare.methods import find_rival, rivals
from dgconv.errors import UserError
from dgconv.layers.method import METHODS
from dgconv.train import Recipe, load_recipe, train
from reproduce.methods import options

FILE = '''
"""A convolution that reads only the first of its inputs."""

import math

from torch import nn

from dgconv.layers.method import Knob, Method, register_method
from dgconv.values import SHARE


class ToyConv2d(nn.Conv2d):
    """Leaves the last inputs out.

    Args:
        toy_share: the share of the inputs that it reads.
    """

    def __init__(
        self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=False,
        *, toy_share: float = 0.75, device=None, dtype=None,
    ):
        TOY.check(toy_share=toy_share)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device=device, dtype=dtype
        )
        self.read = math.ceil(toy_share * in_channels)

    def forward(self, x):
        return self._conv_forward(x[:, : self.read], self.weight[:, : self.read], self.bias)


TOY = register_method(
    Method(
        "toy",
        "Toy",
        ToyConv2d,
        {"toy_share": SHARE},
        "static: fewer inputs",
        Knob("toy_share", cheapest=0.1, dearest=1.0),
        macs=lambda layer, call: (layer.read / layer.in_channels, 0),
    )
)
'''
SIZE = (3, 16, 16)


@pytest.fixture(autouse=True)
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy_method.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("toy_method")
    del METHODS["toy"], sys.modules["toy_method"]


def test_a_model_by_name(toy):
    model = create_model("resnet20_toy", width=8, toy_share=0.5).eval()
    assert "resnet20_toy" in list_models()
    layers = [layer for layer in model.modules() if isinstance(layer, toy.ToyConv2d)]
    assert {layer.read / layer.in_channels for layer in layers} == {0.5}
    assert model(torch.randn(2, *SIZE)).shape == (2, 10)
    with pytest.raises(UserError, match="`toy_share` must be above 0 and up to 1, got 2"):
        create_model("resnet20_toy", toy_share=2)


def test_a_setting_of_recipes_and_of_files(tmp_path):
    recipe = Recipe.of(model="resnet20_toy", toy_share=0.5)
    assert recipe.get("toy_share") == 0.5
    (tmp_path / "mine.toml").write_text('[model]\nname = "resnet20_toy"\ntoy_share = 0.5\n')
    assert load_recipe(tmp_path / "mine.toml") == recipe.changed(name="mine")
    (tmp_path / "wrong.toml").write_text('[model]\nname = "resnet20_toy"\ntoy_share = "half"\n')
    with pytest.raises(UserError, match=r"wrong\.toml.*`toy_share` must be a number, got 'half'"):
        load_recipe(tmp_path / "wrong.toml")


@pytest.mark.slow
def test_a_flag(capsys):
    main(["train", "--model", "resnet20_toy", "--toy-share", "0.5", "--dry-run", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert plan["recipe"]["model"] == {"name": "resnet20_toy", "toy_share": 0.5}
    model = create_model("resnet20_toy", toy_share=0.5)
    assert plan["cost"]["macs"] == {way: count_macs(model, convention=way).macs for way in ("paper", "authors")}
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "The share of the inputs that it reads." in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_it_trains(tmp_path):
    recipe = Recipe.of(model="resnet20_toy", toy_share=0.5, width=4, image_size=8, epochs=1, batch_size=512)
    assert train(recipe, tmp_path / "run").evaluation.images == 360


def test_its_macs_are_counted_by_its_own_rule():
    layers = count_macs(create_model("resnet20_toy", toy_share=0.5), SIZE).layers
    shares = {layer.macs / layer.dense_macs for layer in layers if layer.kind == "ToyConv2d"}
    assert shares == {0.5}
    assert {layer.kept_share for layer in layers if layer.kind != "ToyConv2d"} == {None}


def test_a_row_of_comparisons():
    assert "toy" in rivals()
    assert find_rival("toy").model_name("resnet20") == "resnet20_toy"
    assert find_rival("toy").how_it_runs == "static: fewer inputs"
    chosen = options_for_budget("toy", "resnet20", 0.5, SIZE)
    assert set(chosen) == {"toy_share"}
    assert expected_share("toy", "resnet20", chosen, SIZE) == pytest.approx(0.5, abs=0.02)


def test_a_line_in_figures_and_in_the_docs():
    assert legend_of(Recipe.of(model="resnet20_toy", toy_share=0.5)) == "resnet20 Toy"
    [line] = [line for line in options().splitlines() if "`toy`" in line]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "Toy, `toy`", "`toy_share`", "`0.75`", "above 0 and up to 1", "The share of the inputs that it reads.",
    ]  # fmt: skip
