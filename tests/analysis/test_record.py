"""What is recorded is what the gates did, image by image, and the model is left as it was."""

import copy

import pytest
import torch

from dgconv import create_model, dynamic_layers
from dgconv.analysis.recording import record, record_run
from dgconv.analysis.reservoir import Reservoir
from dgconv.data import load_data
from dgconv.errors import UserError
from dgconv.models import load_model
from dgconv.train import Evaluator, evaluate


@pytest.fixture(scope="module")
def split():
    return load_data("digits", image_size=16).test


@torch.no_grad()
def by_hand(model, split, batch_size):
    """Every image's saliencies and masks, kept in full, layer by layer; the images and the labels."""
    seen = {name: [] for name, _ in dynamic_layers(model)}

    def keep(name):
        def hook(layer, args):
            saliency = layer.generator(args[0])
            seen[name].append((saliency, layer.gate.mask(saliency)))

        return hook

    handles = [layer.register_forward_pre_hook(keep(name)) for name, layer in dynamic_layers(model)]
    batches = list(split.batches(batch_size, train=False))
    for images, _ in batches:
        model(images.contiguous(memory_format=torch.channels_last))
    for handle in handles:
        handle.remove()
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return (
        {name: [torch.cat(part) for part in zip(*pairs, strict=True)] for name, pairs in seen.items()},
        images,
        labels,
    )


def test_sums_equal_those_of_all_images_at_once(run, split):
    expected, _, labels = by_hand(run.model, split, 77)
    with record(run.model, classes=10, examples=16) as recording:
        evaluation = evaluate(run.model, recording.watch(split), batch_size=77)
    assert recording.images == evaluation.images == len(split)
    assert recording.pruned_share == evaluation.pruned_share, "exactly: both count the same decisions"
    assert recording.images_by_class.tolist() == labels.bincount(minlength=10).tolist()
    for name, (saliency, mask) in expected.items():
        layer = recording.layers[name]
        assert torch.equal(layer.kept, mask.sum(0))
        assert torch.equal(layer.kept_by_class.sum(0), layer.kept)
        assert torch.equal(layer.kept_by_class[3], mask[labels == 3].sum(0))
        torch.testing.assert_close(layer.saliency_mean, saliency.double().mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.saliency_std, saliency.double().std(0, correction=0), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(layer.pruning_probability, 1 - mask.double().mean(0), check_dtype=False)
        assert 0 < layer.pruned_share < 1


def test_examples_are_whole_images_with_their_own_masks(run, split):
    expected, images, labels = by_hand(run.model, split, 50)
    with record(run.model, examples=16, seed=5) as recording:
        evaluate(run.model, recording.watch(split), batch_size=50)
    for place in range(16):
        index = (images == recording.example_images[place]).flatten(1).all(1).nonzero()[0, 0]
        assert recording.example_labels[place] == labels[index]
        for name, (saliency, mask) in expected.items():
            assert torch.equal(recording.layers[name].example_masks[place], mask[index])
            torch.testing.assert_close(
                recording.layers[name].example_saliencies[place], saliency[index], rtol=1e-3, atol=1e-4
            )


def test_the_sample_is_fair_and_does_not_depend_on_batches():
    def sample(seed, batches):
        reservoir, held = Reservoir(4, seed), [None] * 4
        first = 0
        for count in batches:
            rows, slots = reservoir.draw(count)
            for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
                held[slot] = first + row
            first += count
        return held

    assert sample(0, [20]) == sample(0, [7, 1, 12]) == sample(0, [1] * 20)
    assert sample(0, [20]) != sample(1, [20])
    assert sample(0, [3])[:3] == [0, 1, 2]
    counts = torch.zeros(20)
    for seed in range(2000):
        counts[sample(seed, [20])] += 1
    assert (counts / 2000 - 4 / 20).abs().max() < 0.05


def test_memory_does_not_grow_with_the_data(run, split):
    def floats(recording):
        return sum(
            tensor.numel() for layer in recording.layers.values() for tensor in vars(layer).values()
            if isinstance(tensor, torch.Tensor)
        )  # fmt: skip

    sizes = []
    for repeats in (1, 3):
        with record(run.model, examples=8) as recording:
            for _ in range(repeats):
                evaluate(run.model, recording.watch(split))
        sizes.append(floats(recording))
        assert recording.images == repeats * len(split)
    assert sizes[0] == sizes[1]


def test_the_model_is_as_it_was(run, split):
    model = run.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="stop"), record(model):
        raise RuntimeError("stop")
    record_run(model, split, examples=4)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(layer.gate.observer is None for _, layer in dynamic_layers(model))
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_answers_are_as_they_were(head_run, dtype):
    model = copy.deepcopy(head_run.model).to(dtype)
    x = head_run.recording.example_images[:8].to(dtype)
    with torch.no_grad():
        expected = model(x)
        with record(model, examples=2):
            assert torch.equal(model(x), expected)


def test_observers_do_not_push_each_other_out(run, split):
    masks = []
    _, layer = next(iter(dynamic_layers(run.model)))
    with layer.gate.observed_by(lambda saliency, mask: masks.append(mask)):
        recording, _ = record_run(run.model, split, examples=4)
    assert sum(len(mask) for mask in masks) == recording.images == len(split)


def test_training_passes_are_recorded_too():
    model = create_model("resnet20_dgc", width=8)
    with record(model, examples=2) as recording:
        model(torch.randn(5, 3, 8, 8)).sum().backward()
    assert recording.images == 5
    assert recording.example_labels.tolist() == [-1, -1]
    assert not any(layer.saliency_sum.requires_grad for layer in recording.layers.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["head", "global"])
def test_on_a_gpu(name, request, split):
    model = load_model(request.getfixturevalue(f"{name}_folder"), "cuda")
    evaluator = Evaluator(model, "cuda")
    plain = evaluator(split, batch_size=90)  # a captured graph
    with record(model, classes=10, examples=8) as recording:
        observed = evaluator(recording.watch(split), batch_size=90)
    assert recording.pruned_share == observed.pruned_share == plain.pruned_share
    assert recording.images == len(split)
    layer = next(iter(recording.layers.values()))
    assert {tensor.device.type for tensor in vars(layer).values() if isinstance(tensor, torch.Tensor)} == {"cpu"}
    assert torch.equal(layer.kept_by_class.sum(0), layer.kept)
    assert evaluator(split, batch_size=90) == plain, "and the graph is used again"


def test_images_of_two_sizes(head_run):
    model = head_run.model
    with record(model) as recording:
        model(torch.randn(2, 3, 16, 16))
        with pytest.raises(UserError, match=r"one size, got \[3, 16, 16\] and then \[3, 8, 8\]"):
            model(torch.randn(2, 3, 8, 8))
    assert recording.images == 2


def test_wrong_use(head_run, split):
    with pytest.raises(UserError, match="no DynamicGroupConv2d"), record(create_model("resnet20")):
        pass
    images = torch.zeros(2, 3, 16, 16)
    with pytest.raises(UserError, match="needs labels"), record(head_run.model, classes=10):
        head_run.model(images)
