"""The weights of a prepared network: a safetensors file, read into memory of its own, every bit of it checked."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files import open_file
from ..runs.tensors import CHECKSUMS, LONGEST_HEADER, TensorFile, checksum
from ..runs.tensors import _compare as compare_checksums
from ..values import load_json
from .run.budget import free_memory, shown
from .run.memory import empty

METADATA = "__metadata__"
LENGTH_BYTES = 8
LARGE = 1 << 30  # bytes of a file from which on it is asked whether there is room for it
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_weights(path: Path) -> TensorFile:
    """What is in a file; an ``OSError`` where it cannot be read, a ``ValueError`` where anything is wrong with it.

    By hand, since weights that are read into huge pages at once are read in half the time.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGE and size > (free := free_memory()):
            raise ValueError(f"it has {shown(size)}, and {shown(free)} are free")
        return _read(file, size)


def from_bytes(data: bytes) -> TensorFile:
    """The same, of what is in memory."""
    with memoryview(data) as view:
        return _read(_Reader(view), len(data))


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def read(self, count: int) -> bytes:
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def readinto(self, target: memoryview) -> int:
        target[:] = self.data[self.at : self.at + len(target)]
        return len(target)


def _read(file: Any, size: int) -> TensorFile:
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if size < LENGTH_BYTES or not 0 < length <= min(LONGEST_HEADER, size - LENGTH_BYTES):
        raise ValueError("its header is cut off, or is none")
    header = load_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no table")
    texts = header.pop(METADATA, None)
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("its metadata is no table of texts")
    memory = empty(-(-(size - LENGTH_BYTES - length) // 4))
    rest = memory.view(torch.uint8)[: size - LENGTH_BYTES - length]
    if rest.numel() and file.readinto(rest.numpy().data) != len(rest):
        raise ValueError("it ends too soon")
    tensors = _tensors(header, rest)
    sums = load_json(texts.pop(CHECKSUMS, "null"))
    compare_checksums(sums, {name: checksum(tensor) for name, tensor in tensors.items()}, texts)
    return TensorFile(tensors, texts)


def _tensors(header: dict[str, Any], data: Tensor) -> dict[str, Tensor]:
    """The tensors that the header names: one behind the other, from the first byte to the last."""
    tensors: dict[str, Tensor] = {}
    at = 0
    for name, entry in sorted(header.items(), key=lambda item: _begin(item[1])):
        dtype, shape, end = TYPES.get(entry["dtype"]), entry["shape"], entry["data_offsets"][1]
        if dtype is None:
            raise ValueError(f"the tensor {name!r} is of an unknown type")
        count = 1
        for extent in shape:
            count *= extent
            if count > len(data):
                raise ValueError(f"the tensor {name!r} is larger than the file")
        if _begin(entry) != at or at % dtype.itemsize or end != at + count * dtype.itemsize or end > len(data):
            raise ValueError(f"the tensor {name!r} is not where it should be")
        part, at = data[at:end], end
        if dtype == torch.bool and part.numel() and part.max() > 1:
            raise ValueError(f"the tensor {name!r} is not of truth values")
        tensors[name] = part.view(dtype).view(shape) if part.numel() else torch.empty(shape, dtype=dtype, device="cpu")
    if at != len(data):
        raise ValueError("it is longer than its tensors")
    return tensors


def _begin(entry: Any) -> int:
    """Where a tensor begins, after a look at what is said of it."""
    is_entry = isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}
    numbers = [*entry["shape"], *entry["data_offsets"]] if is_entry and _are_lists(entry) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(entry["data_offsets"]) != 2:
        raise ValueError("what its header says of a tensor is not what it must be")
    return entry["data_offsets"][0]


def _are_lists(entry: dict[str, Any]) -> bool:
    return isinstance(entry["shape"], list) and isinstance(entry["data_offsets"], list) and len(entry["shape"]) <= 8
