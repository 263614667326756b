"""Frozen gates: one choice for all images, with their own saliencies or with one saliency for all."""

import copy

import pytest
import torch

from dgconv import dynamic_layers
from dgconv.analysis.frozen import freeze_gates


def gates_of(model, x):
    """What each gate lets pass, and the saliencies it was given; of the first dynamic layer."""
    name, layer = next(dynamic_layers(model))
    seen = []
    handle = layer.gate.register_forward_hook(lambda gate, args, out: seen.append((args[0], out)))
    model(x)
    handle.remove()
    return name, *seen[0]


@pytest.fixture
def images(run):
    return next(iter(run.data.test.batches(9, train=False)))[0]


@torch.no_grad()
def test_one_choice_with_the_saliencies_of_each_image(run, images):
    mean = run.recording.layers
    with freeze_gates(run.model.eval(), run.recording, saliencies=False):
        name, saliency, gates = gates_of(run.model, images)
        kept = dict(dynamic_layers(run.model))[name].gate.mask(mean[name].saliency_mean.float())
    assert kept.any()
    assert not kept.all()
    assert torch.equal(gates, saliency * kept)


@torch.no_grad()
def test_one_gate_for_all_is_the_network_with_constant_saliencies(run, images):
    model = run.model.eval()
    before = model(images)
    static = copy.deepcopy(model)
    for name, layer in dynamic_layers(static):
        layer.generator.weight2.zero_()
        layer.generator.bias.copy_(run.recording.layers[name].saliency_mean)
    with freeze_gates(model, run.recording, saliencies=True):
        torch.testing.assert_close(model(images), static(images), rtol=1e-4, atol=1e-4)
    assert torch.equal(model(images), before), "the model is as it was"
