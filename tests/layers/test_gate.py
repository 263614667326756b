"""The keep-count rule and the tie rule."""

import pytest
import torch

from dgconv import create_model, dynamic_layers
from dgconv.layers import GlobalGate, HeadGate, keep_count
from dgconv.layers.gate import best, ranks


@pytest.mark.parametrize(
    ("channels", "rate", "rule", "kept"),
    [
        (64, 0.75, "ceil", 16),
        (100, 0.55, "ceil", 45),
        (9, 1 / 3, "ceil", 6),  # (1 - 1 / 3) * 9 is a little more than 6 in floating point
        (10, 0.7, "ceil", 3),
        (256, 0.55, "ceil", 116),
        (512, 0.55, "ceil", 231),
        (256, 0.55, "round", 115),
        (512, 0.55, "round", 230),
        (10, 1 / 3, "ceil", 7),
        (3, 0.99, "ceil", 1),
        (3, 0.99, "round", 1),
        (7, 0.0, "ceil", 7),
    ],
)
def test_keep_count(channels, rate, rule, kept):
    assert keep_count(channels, rate, rule) == kept


def test_a_gate_keeps_by_its_rule():
    head_gate = HeadGate(256, 0.55, keep_rule="round")
    assert int(head_gate.keep) == 115
    head_gate.set_rate(0.0)
    head_gate.set_rate(0.55)
    assert int(head_gate.keep) == 115


@pytest.mark.parametrize("name", ["condensenet50_dgc", "condensenet86_dgc"])
def test_where_the_keep_rules_agree(name):
    """As docs/reproduction.md says."""
    widths = [layer.in_channels for _, layer in dynamic_layers(create_model(name))]
    differ = {
        rate: sum(keep_count(width, rate, "ceil") != keep_count(width, rate, "round") for width in widths)
        for rate in (1 / 3, 1 / 2, 3 / 4, 5 / 6, 7 / 8)
    }
    assert differ[1 / 2] == differ[3 / 4] == differ[7 / 8] == 0
    assert differ[1 / 3] == differ[5 / 6] == pytest.approx(len(widths) / 3, abs=1)


def gate(values, keep, **options):
    head_gate = HeadGate(len(values), 0, **options)
    head_gate.keep.fill_(keep)
    return head_gate(torch.tensor([[values]]))[0, 0].tolist()


def test_lowest_index_wins_a_tie():
    assert gate([1.0, 1.0, 1.0, 1.0], 2) == [1, 1, 0, 0]
    assert gate([1.0, 3.0, 2.0, 2.0, 3.0], 3) == [0, 3, 2, 0, 3]
    many = HeadGate(1000, 0.75).mask(torch.ones(3, 2, 1000))
    assert many[..., :250].all()
    assert not many[..., 250:].any()


@pytest.mark.parametrize("values", [3, 40, 10**6])  # how many there are to tie
@pytest.mark.parametrize("keep", [1, 5, 17])
def test_what_is_kept_is_what_sorting_keeps(values, keep):
    score = torch.randint(values, (6, 4, 17)).float()
    score[0, 0, :9] = -torch.inf
    score[1, 1] = torch.inf
    assert torch.equal(best(score, torch.tensor(keep)), ranks(score) < keep)


def test_authors_tie_rule_drops_all_at_the_border():
    assert gate([1.0, 1.0, 1.0, 1.0], 2, tie_rule="drop") == [0, 0, 0, 0]
    assert gate([1.0, 3.0, 2.0, 2.0, 3.0], 3, tie_rule="drop") == [0, 3, 0, 0, 3]
    assert gate([1.0, 3.0, 2.0], 2, tie_rule="drop") == [0, 3, 2]
    assert gate([1.0, 1.0], 2, tie_rule="drop") == [1, 1]


def test_nan_ranks_last():
    nan, inf = float("nan"), float("inf")
    assert gate([nan, 1.0, inf, 2.0], 2) == [0, 0, inf, 2]
    assert gate([0.0, nan, 0.0], 2) == [0, 0, 0]


@pytest.mark.parametrize("tie_rule", ["lowest_index", "drop"])
def test_at_rate_0_all_pass_whatever_they_are(tie_rule):
    saliency = torch.tensor([[[float("nan"), -float("inf"), 0.0, 1.0, 1.0]]])
    assert HeadGate(5, 0, tie_rule=tie_rule).mask(saliency).all()


@pytest.mark.parametrize("tie_rule", ["lowest_index", "drop"])
def test_a_compiled_gate_ranks_by_comparing_and_keeps_the_same(tie_rule, monkeypatch):
    saliency = torch.randint(3, (4, 2, 17)).float()  # many ties
    saliency[0, 0, 3] = float("nan")
    head_gate = HeadGate(17, 0.6, tie_rule=tie_rule)
    expected = head_gate.mask(saliency)
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: True)
    monkeypatch.setattr(torch.Tensor, "argsort", None)  # not called
    assert torch.equal(head_gate.mask(saliency), expected)


def test_gradient_reaches_the_kept_only():
    saliency = torch.tensor([[[1.0, 3.0, 2.0, 0.5]]], requires_grad=True)
    head_gate = HeadGate(4, 0.5)
    head_gate(saliency).sum().backward()
    assert saliency.grad.tolist() == [[[0, 1, 1, 0]]]


def test_global_gate():
    global_gate = GlobalGate()
    saliency = torch.tensor([[[1.0, -3.0, 0.5, float("nan")]]])
    assert global_gate(saliency)[0, 0, :3].tolist() == [1, -3, 0.5], "a threshold of 0 lets all pass"
    global_gate.threshold.fill_(1)
    assert global_gate(saliency).tolist() == [[[1, -3, 0, 0]]]


def test_one_more_observer_leaves_the_first_in_place():
    head_gate, seen = HeadGate(4, 0.5), []
    head_gate.observer = first = lambda saliency, mask: seen.append("first")
    with head_gate.observed_by(lambda saliency, mask: seen.append(mask.sum().item())):
        head_gate(torch.rand(1, 1, 4))
    head_gate(torch.rand(1, 1, 4))
    assert seen == ["first", 2, "first"]
    assert head_gate.observer is first
