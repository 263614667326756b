"""The three stages and the learning rate."""

import pytest
from torch import nn

from dgconv import DynamicGroupConv2d, create_model, dynamic_layers
from dgconv.errors import UserError
from dgconv.layers import keep_count
from dgconv.train import cosine_learning_rate, pruning_ramp, set_progress
from dgconv.train.schedule import GateSchedule


@pytest.mark.parametrize(
    ("progress", "share"),
    [(0, 0), (1 / 12, 0), (1 / 12 + 1e-9, 1.5e-9), (5 / 12, 0.5), (3 / 4, 1), (0.9, 1), (1, 1)],
)
def test_ramp(progress, share):
    assert pruning_ramp(progress) == pytest.approx(share, abs=1e-12)


def test_ramp_prunes_as_the_authors_code_does():
    """pruned = round(C * xi * 1.5 * (p - 1/12)) between the first twelfth and three quarters."""
    model = create_model("condensenet20_dgc", keep_rule="round", pruning_rate=0.75)
    for progress in (0, 0.1, 0.3, 0.5, 0.7, 0.8, 1):
        set_progress(model, progress)
        for _, layer in dynamic_layers(model):
            channels = layer.in_channels
            inside = 1 / 12 < progress < 3 / 4
            ramped = round(channels * 0.75 * 1.5 * (progress - 1 / 12)) if inside else 0
            pruned = round(0.75 * channels) if progress >= 3 / 4 else ramped
            assert int(layer.gate.keep) == channels - pruned


def test_a_gate_is_written_to_only_when_its_count_changes():
    model = create_model("condensenet20_dgc")
    schedule, other = GateSchedule(model), create_model("condensenet20_dgc")
    (_, layer), *_ = dynamic_layers(model)
    versions = set()
    for step in range(1001):
        schedule.before_step(step / 1000)
        set_progress(other, step / 1000)
        versions.add(layer.gate.keep._version)
        assert [int(a.gate.keep) for _, a in dynamic_layers(model)] == [
            int(b.gate.keep) for _, b in dynamic_layers(other)
        ]
    assert len(versions) == layer.in_channels - keep_count(layer.in_channels, 0.75) + 1


def test_a_single_channel_may_be_kept():
    layer = DynamicGroupConv2d(16, 16, 1, pruning_rate=0.99)
    set_progress(layer, 0)
    assert int(layer.gate.keep) == 16
    set_progress(layer, 1)
    assert int(layer.gate.keep) == 1


def test_target_rate_holds_without_a_schedule():
    for _, layer in dynamic_layers(create_model("condensenet20_dgc")):
        assert int(layer.gate.keep) == keep_count(layer.in_channels, 0.75)


def test_global_gates_are_left_to_their_threshold():
    model = create_model("condensenet20_dgcg")
    set_progress(model, 0.5)
    assert all(float(layer.gate.threshold) == 0 for _, layer in dynamic_layers(model))


def test_cosine():
    assert cosine_learning_rate(0.1, 0) == 0.1
    assert cosine_learning_rate(0.1, 0.5) == pytest.approx(0.05)
    assert cosine_learning_rate(0.1, 1) == pytest.approx(0)


@pytest.mark.parametrize("progress", [2, -0.1, float("nan"), "half", None, True])
def test_progress_is_a_number_from_0_to_1(progress):
    with pytest.raises(UserError, match="`progress` must be a number from 0 to 1"):
        set_progress(DynamicGroupConv2d(8, 8, 3), progress)


def test_a_dense_network_has_no_gates_to_move():
    with pytest.raises(UserError, match="Linear has no dynamic layers"):
        set_progress(nn.Linear(2, 2), 0.5)
