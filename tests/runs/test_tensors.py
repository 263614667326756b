"""Tensors in files: what was written is read, and what became of it on the way is told."""

import json
import struct

import pytest
import torch
from safetensors.torch import save

from dgconv.runs import tensors as tensor_files
from dgconv.runs.tensors import read_shapes, read_tensors, to_bytes

TENSORS = {
    "weight": torch.arange(12.0).view(3, 4),
    "half": torch.ones(5, dtype=torch.bfloat16),
    "keep": torch.tensor(3),
    "mask": torch.tensor([True, False]),
    "none": torch.zeros(0, 4),
}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "file").write_bytes(to_bytes(TENSORS, {"note": "a text"}))
    return tmp_path / "file"


def test_what_was_written_is_read(path):
    tensors, metadata = read_tensors(path)
    assert metadata == {"note": "a text"}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert read_shapes(path) == {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


def test_the_same_tensors_are_the_same_bytes():
    contents = {to_bytes(TENSORS) for _ in range(20)}
    assert contents == {to_bytes(dict(reversed(TENSORS.items())))}


@pytest.mark.slow
def test_no_bit_can_be_flipped(path):
    """Of the whole file, its header included."""
    content = path.read_bytes()
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r".+"):
            read_tensors(path)


def test_what_was_changed_is_named(path):
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<f", 7.0), struct.pack("<f", 8.0)))
    with pytest.raises(ValueError, match="the tensor 'weight' is not as it was written: its checksum differs"):
        read_tensors(path)
    path.write_bytes(content.replace(b"a text", b"a tent"))
    with pytest.raises(ValueError, match="its metadata is not as it was written"):
        read_tensors(path)


def test_older_files_have_no_checksums(tmp_path):
    path = tmp_path / "old"
    for metadata in (None, {"format": "pt"}, {"position": "{}", "recipe": "{}"}):
        path.write_bytes(save(TENSORS, metadata))
        assert read_tensors(path, known=("position", "recipe")).tensors.keys() == TENSORS.keys()
    with pytest.raises(ValueError, match="it has no checksums, but 'position'"):
        read_tensors(path, known=("recipe",))


@pytest.mark.parametrize("checksums", ["", "[]", "{}", '{"tensors": []}', '{"tensors": {}}', "[" * 1000])
def test_checksums_that_are_none(tmp_path, checksums):
    (tmp_path / "file").write_bytes(save(TENSORS, {"checksums": checksums}))
    with pytest.raises(ValueError, match=r".+"):
        read_tensors(tmp_path / "file")


def test_a_header_that_names_far_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "LONGEST_HEADER", 1000)
    names = {f"tensor{number}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(100)}
    header = json.dumps(names).encode()
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(header)) + header)
    for read in (read_tensors, read_shapes):
        with pytest.raises(ValueError, match=r"its header has [\d,]+ bytes; at most 1,000 are read"):
            read(tmp_path / "file")
