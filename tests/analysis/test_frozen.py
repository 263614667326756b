"""Frozen gates: one choice for all images, with their own saliencies or with one saliency for all."""

import copy

import pytest
import torch

from dgconv import dynamic_layers
from dgconv.analysis.frozen import freeze_gates, some_images, worth_by_layer


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


@torch.no_grad()
def test_worth_is_told_layer_by_layer(run):
    model, images = run.model.eval(), some_images(run.model, run.data)
    x, y = (torch.cat(parts) for parts in zip(*images, strict=True))
    worth = worth_by_layer(model, run.recording, images)
    assert list(worth) == [name for name, _ in dynamic_layers(model)]

    def error(**options) -> float:
        with freeze_gates(model, run.recording, **options):
            return 100 * float((model(x).argmax(1) != y).double().mean())

    before = error(saliencies=False, layers=[])
    for name, found in worth.items():
        assert found.choice == pytest.approx(error(saliencies=False, layers=[name]) - before, abs=0.6)
        assert found.gate == pytest.approx(error(saliencies=True, layers=[name]) - before, abs=0.6)
    changed = [name for name in worth if not torch.equal(model(x), _frozen(model, run.recording, name, x))]
    assert changed == list(worth), "each layer's gate matters to the logits"


def _frozen(model, recording, name, x):
    with freeze_gates(model, recording, saliencies=True, layers=[name]):
        return model(x)


def test_fewer_images_where_they_are_large(run, monkeypatch):
    monkeypatch.setattr("dgconv.analysis.frozen.PIXELS", 1)
    assert sum(len(labels) for _, labels in some_images(run.model, run.data)) <= 50
