"""The global threshold."""

import pytest
import torch
from torch import nn

from dgconv import DynamicGroupConv2d, create_model, dynamic_layers
from dgconv.layers.controller import Place
from dgconv.train import GlobalThreshold, controllers_of, take_saliencies
from dgconv.train.tables import TrainingTable
from dgconv.train.threshold import macs_per_saliency, quantile


def test_quantile_has_the_wanted_share_below():
    values = torch.randperm(1000).float()
    for share in (0.001, 0.25, 1 / 3, 0.75, 0.999):
        assert (values < quantile(values, share)).float().mean() == pytest.approx(share, abs=5e-4)
    assert quantile(values + 1, 0) == 0
    assert quantile(torch.tensor([3.0, 1.0]), 0.9) == 3, "one stays, however few there are"


@pytest.fixture
def model():
    return create_model("condensenet20_dgcg", stages=(2, 2), growth=(4, 8), pruning_rate=0.75)


def test_prunes_the_target_share_of_what_it_has_seen(model):
    controller = GlobalThreshold(model, epochs=3)
    seen = []
    for _ in range(2):
        model(torch.randn(16, 3, 16, 16))
        saliencies = take_saliencies(model)
        controller.add(saliencies)
        seen += [g.detach().abs().flatten() for g in saliencies]
    threshold = controller.end_epoch(progress=1.0)
    assert (torch.cat(seen) < threshold).float().mean() == pytest.approx(0.75, abs=1e-3)
    assert {float(layer.gate.threshold) for _, layer in dynamic_layers(model)} == {threshold}
    assert controller.end_epoch(progress=1.0) is None, "the library is emptied"


def test_every_batch_of_the_library_counts(model):
    controller = GlobalThreshold(model, epochs=3)
    for batch in torch.arange(300.0).view(3, 1, 1, 100):
        controller.add([batch])
    assert controller.end_epoch(progress=1.0) == 225


def test_rate_follows_the_ramp(model):
    controller = GlobalThreshold(model, epochs=3)
    values = torch.rand(1, 1, 10_000)
    thresholds = []
    for progress in (0.05, 5 / 12, 0.8):
        controller.add([values])
        thresholds.append(controller.end_epoch(progress))
    assert thresholds[0] == 0
    assert thresholds[1:] == pytest.approx([0.375, 0.75], abs=0.02)


def test_library_is_the_last_batches_of_every_third_epoch(model):
    controller = GlobalThreshold(model, epochs=7, batches=2, every=3)
    wanted = [(e, b) for e in range(7) for b in range(4) if controller.wants(Place(e, b, steps=4))]
    assert wanted == [(2, 2), (2, 3), (5, 2), (5, 3), (6, 2), (6, 3)], "and of the last epoch"


def test_nothing_to_do_without_global_gates():
    controller = GlobalThreshold(create_model("condensenet20_dgc"), epochs=3)
    assert not controller.thresholds
    assert not controller.wants(Place(2, 9, steps=10))


def test_what_leaving_out_one_channel_of_one_head_saves():
    layers = [DynamicGroupConv2d(8, 12, 3, padding=1, heads=heads, gate="global") for heads in (4, 2)]
    layers.append(DynamicGroupConv2d(8, 8, 1, gate="head"))  # has no part in a global threshold
    model = nn.Sequential(layers[0], nn.Conv2d(12, 8, 1), layers[1], nn.Conv2d(12, 8, 1), layers[2])
    pixels = 10 * 10
    assert macs_per_saliency(model, (8, 10, 10)) == [9 * 12 / 4 * pixels, 9 * 12 / 2 * pixels]


def test_the_threshold_may_be_a_running_mean(model):
    controller = GlobalThreshold(model, epochs=3, momentum=0.25)
    found = []
    for scale in (1.0, 3.0, 3.0):
        controller.add([scale * torch.arange(100.0).view(1, 1, 100)])
        found.append(controller.end_epoch(progress=1.0))
    assert found == pytest.approx([75, 75 + 150 / 4, 112.5 + 112.5 / 4]), "the first counts whole"
    assert controllers_of(model, TrainingTable(threshold_momentum=0.5)).members[-1].momentum == 0.5
