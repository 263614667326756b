"""Models on disk."""

import json
import os
import signal
from pkgutil import resolve_name

import pytest
import torch

from dgconv import create_model, dynamic_layers, load_model, save_model
from dgconv.errors import UserError
from dgconv.models.storage import save_weights, snapshot, write_atomically


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
            lambda f: save_weights(f / "model.safetensors", snapshot(load_model(f)) | {"more": torch.ones(1)}),
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


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    assert path.stat().st_mode & 0o777 == 0o644, "others may read it, though a temporary file is for its owner"

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def killed_while_it_writes(path):
    """As by kill -9, or by a kernel that is out of memory."""
    child = os.fork()
    if not child:
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        try:
            write_atomically(path, b"never whole")
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_the_next_write_removes_what_a_killed_one_left(tmp_path):
    path, other = tmp_path / "[file]", tmp_path / "other"
    for target in (path, other):
        killed_while_it_writes(target)
    assert sorted(entry.name[:6] for entry in tmp_path.iterdir()) == [".[file", ".other"]
    write_atomically(path, b"new")
    assert sorted(entry.name[:6] for entry in tmp_path.iterdir()) == [".other", "[file]"], "each for itself"


def test_writers_of_one_file_leave_each_other_alone(tmp_path, monkeypatch):
    """Whether the first has only made its file by then, or written it as well."""
    path = tmp_path / "file"

    def with_another(function):
        def meanwhile(*args):
            monkeypatch.undo()
            write_atomically(path, b"second")
            assert path.read_bytes() == b"second"
            return function(*args)

        return meanwhile

    for name in ("dgconv.models.storage.hold_open_file", "os.fsync"):
        monkeypatch.setattr(name, with_another(resolve_name(name)))
        write_atomically(path, b"first")
        assert path.read_bytes() == b"first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_link_or_a_pipe_stays_what_it_is(tmp_path):
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"new")
    assert pipe.is_fifo()
    assert os.read(reader, 10) == b"new"
    os.close(reader)


@pytest.mark.parametrize("name", ["x" * 250 + ".html", "ü" * 120 + ".html"])
def test_a_name_as_long_as_the_disk_takes(tmp_path, name):
    """What is written first has a longer one, and after hours of work it would be too late to find that out."""
    write_atomically(tmp_path / name, b"old")
    write_atomically(tmp_path / name, b"new")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"new"
