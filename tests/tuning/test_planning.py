"""What a plan decides, and by which times."""

import copy

import pytest
import torch
from torch import nn

import dgconv
from dgconv.errors import UserError
from dgconv.tuning import planning
from dgconv.tuning.planning import Plan, plan
from tests.tuned_networks import network

IMAGE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return network().eval()


def test_the_plan_names_every_convolution_and_leaves_the_first(model):
    found = plan(model, IMAGE, precision="float32")
    assert [layer.name for layer in found.layers] == ["0.0", "1.0", "2.0"]
    assert found.layers[0].reason == "first convolution"
    assert found.converted == {name: {"heads": 4, "pruning_rate": 0.75} for name in ("1.0", "2.0")}
    assert "1.0" in str(found)


def test_converted_as_planned_it_computes_the_same_at_rate_zero(model):
    converted = plan(model, IMAGE, precision="float32").apply_(copy.deepcopy(model)).eval()
    dgconv.set_pruning_rate(converted, 0)
    torch.testing.assert_close(converted(IMAGE), model(IMAGE), atol=1e-4, rtol=1e-4)


def test_a_plan_is_read_back(model):
    found = plan(model, IMAGE, pruning_rate=0.5, precision="float32")
    assert Plan.from_dict(found.to_dict(), "it") == found


def test_a_target_out_of_reach_plans_the_best_there_is(model):
    found = plan(model, IMAGE, target_speedup=1e6, precision="float32")
    assert found.pruning_rate == max(planning.RATES)
    assert any("out of reach" in note for note in found.notes)


def test_the_least_rate_is_taken_that_reaches_a_target(model):
    assert plan(model, IMAGE, target_speedup=1e-6, precision="float32").pruning_rate == min(planning.RATES)


def test_where_nothing_pays_it_says_so(model, monkeypatch):
    monkeypatch.setattr(planning, "PAYS", 0.0)
    found = plan(model, IMAGE, precision="float32")
    assert not found.is_worth_it
    assert found.summary.startswith("not worth converting")
    assert all("not faster" in layer.reason for layer in found.layers[1:])
    assert found.expected == found.dense


def test_heads_that_do_not_divide_are_fewer():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 9, 3)).eval()
    assert [layer.heads for layer in plan(model, IMAGE, precision="float32").layers] == [None, 2, 1]


def test_layers_that_cannot_be_converted_say_why():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8)).eval()
    assert plan(model, IMAGE, precision="float32").layers[1].reason == "depthwise"


class Excited(nn.Module):
    """A convolution beside squeeze and excitation, and a head that looks at the size of its images."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.apart = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.reduce, self.expand = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.apart(self.body(self.stem(x).relu())).relu()
        x = x * self.expand(self.reduce(x.mean((2, 3), keepdim=True)).relu()).sigmoid()
        if x.shape[-1] < 7:
            x = nn.functional.adaptive_avg_pool2d(x, 7)
        return self.head(x.mean((2, 3)))


def test_what_computes_one_pixel_is_left_and_stays_native():
    torch.manual_seed(0)
    found = plan(Excited().eval(), IMAGE)
    reasons = {layer.name: layer.reason for layer in found.layers}
    assert "one pixel" in reasons["reduce"]
    assert "one pixel" in reasons["expand"]
    assert set(found.dense) == {"float32", "int8"}
    assert all(set(layer.dense) == set(found.dense) for layer in found.layers), "each is timed by itself"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_speedup": 0}, "above 0"),
        ({"target_speedup": 2.0, "pruning_rate": 0.5}, "not both"),
        ({"pruning_rate": 1.5}, "rate"),
        ({"threads": 0}, "threads"),
    ],
)
def test_wrong_arguments(model, options, message):
    with pytest.raises(UserError, match=message):
        plan(model, IMAGE, **options)


def test_a_network_without_convolutions():
    with pytest.raises(UserError, match="no convolutions"):
        plan(nn.Sequential(nn.Flatten(), nn.Linear(768, 3)).eval(), IMAGE)


def test_an_example_that_is_none(model):
    with pytest.raises(UserError, match="`example` must be"):
        plan(model, IMAGE[0])
