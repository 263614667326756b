"""Models on disk."""

import json
import resource

import pytest
import torch

from dgconv import create_model, dynamic_layers, load_model, save_model
from dgconv.errors import UserError
from dgconv.models.storage import build_from_run, snapshot
from dgconv.runs import RunFolder


@pytest.fixture
def saved(tmp_path):
    model = create_model("condensenet20_dgc", num_classes=5, stages=(1, 1), growth=(4, 8), pruning_rate=0.5)
    model(torch.randn(8, 3, 16, 16))  # batch statistics
    next(dynamic_layers(model))[1].gate.keep.fill_(3)
    save_model(model, tmp_path / "run", note="extra")
    return tmp_path / "run", model


def test_round_trip(saved):
    folder, model = saved
    twin = load_model(folder)
    x = torch.randn(4, 3, 16, 16)
    assert torch.equal(twin(x), model.eval()(x))
    assert int(next(dynamic_layers(twin))[1].gate.keep) == 3
    config = json.loads((folder / "config.json").read_text())
    assert config["note"] == "extra"
    assert config["model"]["pruning_rate"] == 0.5
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_new_classifier_is_saved_too(saved, tmp_path):
    model = saved[1]
    model.reset_classifier(3)
    save_model(model, f"{tmp_path}/other")
    assert load_model(tmp_path / "other").num_classes == 3


def test_a_snapshot_stays_as_it_was(saved):
    model = saved[1]
    copy = snapshot(model)
    expected = {name: tensor.tolist() for name, tensor in copy.items()}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    assert {name: tensor.tolist() for name, tensor in copy.items()} == expected


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "not a run folder: it has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json must be a table of keys and values"),
        (lambda f: (f / "config.json").write_text("{}"), "no 'model' entry"),
        (lambda f: (f / "config.json").write_text('{"model": {"nam": 1}}'), "model: the key 'name' is missing"),
        (
            lambda f: (f / "config.json").write_text('{"model": {"name": "mynet_dgc"}}'),
            r"config\.json: unknown model 'mynet_dgc'.*If the backbone is your own, import the module",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "is missing"),
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-10]),
            "damaged or not a safetensors file",
        ),
        (lambda f: (f / "model.safetensors").write_bytes(b"hello"), "damaged or not a safetensors file"),
        (
            lambda f: (f / "config.json").write_text('{"model": {"name": "resnet20"}}'),
            "does not fit the network as it is built now: missing conv1.weight",
        ),
        (
            lambda f: (f / "config.json").write_text(
                '{"model": {"name": "condensenet20_dgc", "stages": [1, 1], "growth": [4, 8], "num_classes": 9}}'
            ),
            r"classifier.weight is \[5, 20\], expected \[9, 20\]",
        ),
        (
            lambda f: RunFolder(f).write_weights(snapshot(load_model(f)) | {"more": torch.ones(1)}),
            "does not fit the network as it is built now: unexpected more",
        ),
    ],
)
def test_damaged_folders(saved, damage, message):
    damage(saved[0])
    with pytest.raises(UserError, match=message):
        load_model(saved[0])


def test_a_model_from_elsewhere_cannot_be_saved(tmp_path):
    with pytest.raises(UserError, match="that create_model built by name, and Linear has no"):
        save_model(torch.nn.Linear(2, 2), tmp_path)


@pytest.mark.parametrize("keep", [-5, 0, 10_000, 2**31, 2**32 + 4])
def test_a_count_that_no_gate_can_keep(saved, keep):
    folder, model = saved
    name = next(name for name in model.state_dict() if name.endswith("gate.keep"))
    RunFolder(folder).write_weights(snapshot(model) | {name: torch.tensor(keep)})
    with pytest.raises(UserError, match=rf"does not fit .*: {name} must be from 1 to \d+, got {keep}"):
        load_model(folder)
    with pytest.raises(RuntimeError, match=f"must be from 1 to .*, got {keep}"):
        model.load_state_dict(model.state_dict() | {name: torch.tensor(keep)})


@pytest.mark.parametrize("value", [torch.tensor(float("nan")), torch.tensor(2.0), torch.tensor(True)])
def test_a_count_is_a_whole_number(saved, value):
    folder, model = saved
    name = next(name for name in model.state_dict() if name.endswith("gate.keep"))
    RunFolder(folder).write_weights(snapshot(model) | {name: value})
    with pytest.raises(UserError, match=rf"{name} is {value.dtype}, expected torch.int64"):
        load_model(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"num_classes": 10**7},
        {"stages": [100_000, 1]},
        {"growth": [400_000, 400_000]},
        {"num_classes": 10**7, "widths": {"classifier": [5, 20]}},
        {"name": "mobilenetv2", "width": 1000.0},
        {"name": "resnet18", "stages": [1] * 100_000},
    ],
)
def test_a_config_that_asks_for_far_more_than_the_weights(saved, options):
    folder, model = saved
    RunFolder(folder).write_config((model.config if "name" not in options else {}) | options)
    before = peak()
    for load in (load_model, lambda folder: build_from_run(RunFolder(folder))):
        with pytest.raises(UserError, match=r"config\.json: the network would be larger than its weights"):
            load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"larger than 134,217,728 numbers, the most without weights"):
        build_from_run(RunFolder(folder))
    assert peak() - before < 2**29


def peak():
    """Bytes of memory that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_network_that_was_cut_is_made_whole_first(tmp_path):
    model = create_model("resnet20", width=64, widths={"layer1.0.conv1": [1, 64], "layer1.0.bn1": [1]})
    with torch.no_grad():
        model.layer1[0].conv2 = torch.nn.Conv2d(1, 64, 3, padding=1, bias=False)
    model.config["widths"]["layer1.0.conv2"] = [64, 1]
    save_model(model, tmp_path)
    assert load_model(tmp_path).layer1[0].conv1.out_channels == 1
