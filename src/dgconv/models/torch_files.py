"""Files of ``torch.save``, read without an unpickler: values and tensors are taken from them, nothing is ever called.

Where a pickle would call a function, the call of what makes a tensor is understood, and any other stays a name.
"""

import math
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..data.pickles import Instructions
from ..files import open_file

MAGIC = 0x1950A86A20F9469CFC6C  # begins a file of versions before 1.6
ZIP = b"PK\x03\x04"
LONGEST_PICKLE = 32 * 2**20  # bytes; tensors are not in it
MOST_DIMENSIONS = 8
MOST_NUMBERS = 2**40
COUNT_BYTES = 8
TYPES = {
    "torch.FloatStorage": torch.float32,
    "torch.DoubleStorage": torch.float64,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}


class ForeignObject(ValueError):
    """A file holds something of a class that only code of its own could make."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Named:
    """Something of torch's by its name, or what a call of it would give; it is neither looked up nor called."""

    name: str


@dataclass(frozen=True)
class Storage:
    """Numbers in a file, by their key."""

    dtype: torch.dtype
    key: str
    numbers: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor by the place of its numbers."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.storage.dtype.itemsize


@dataclass(frozen=True)
class TorchFile:
    """What a file holds: plain values, with :class:`StoredTensor` and :class:`Named` among them."""

    content: Any
    read_bytes: Callable[[Storage], bytearray]
    size: int


def read_torch_file(path: Path, use: Callable[[TorchFile], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``use`` makes of a file while it is open.

    A ``ValueError`` where it is damaged or was not written by ``torch.save``, an ``OSError`` where it cannot be read.
    """
    with open_file(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        is_zip = file.read(len(ZIP)) == ZIP
        file.seek(0)
        try:
            return use(_open_zip(file, size) if is_zip else _open_legacy(file, size))
        except (ValueError, OSError):
            raise
        except Exception as error:  # a damaged file raises nearly anything
            raise ValueError(f"{type(error).__name__}: {error}") from None


def read_all(file: TorchFile, tensors: dict[str, StoredTensor]) -> dict[str, Tensor]:
    """These tensors of a file. Together they have no more bytes than it: views of the same numbers are refused."""
    if sum(tensor.bytes for tensor in tensors.values()) > file.size:
        raise ValueError("its tensors are larger than the file: they are views of the same numbers")
    return {name: _read_tensor(file, tensor) for name, tensor in tensors.items()}


def _read_tensor(file: TorchFile, tensor: StoredTensor) -> Tensor:
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))
    if not math.prod(tensor.shape):
        return torch.zeros(tensor.shape, dtype=tensor.storage.dtype)
    if last >= tensor.storage.numbers:
        raise ValueError("a tensor reaches beyond its numbers")
    content = file.read_bytes(tensor.storage)
    if len(content) < tensor.storage.numbers * tensor.storage.dtype.itemsize:
        raise ValueError("numbers of a tensor are missing")
    numbers = torch.frombuffer(content, dtype=tensor.storage.dtype, count=tensor.storage.numbers)
    return numbers.as_strided(tensor.shape, tensor.stride, tensor.offset).clone(memory_format=torch.contiguous_format)


# -- the two kinds of files ----------------------------------------------------------------------------------------


def _open_zip(file: BinaryIO, size: int) -> TorchFile:
    archive = zipfile.ZipFile(file)
    entries = {entry.filename: entry for entry in archive.infolist()}
    name = next((name for name in entries if name.endswith("/data.pkl")), None)
    if name is None:
        raise ValueError("it has no data.pkl")
    folder = name.removesuffix("data.pkl")

    def read(name: str, most: int) -> bytes:
        entry = entries[name]
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > min(most, size):
            raise ValueError(f"{name} is compressed, or larger than it can be")
        return archive.read(entry)

    content = _Instructions().follow(BytesIO(read(name, LONGEST_PICKLE)))
    return TorchFile(content, lambda storage: bytearray(read(f"{folder}data/{storage.key}", size)), size)


def _open_legacy(file: BinaryIO, size: int) -> TorchFile:
    """Five pickles, of which the last two are the content and the keys of storages; then each of these, counted."""
    instructions = _Instructions()
    if instructions.follow(file) != MAGIC:
        raise ValueError("it does not begin like one")
    *_, content, keys = [instructions.follow(file) for _ in range(4)]
    places: dict[str, int] = {}
    for key in keys:
        storage = instructions.storages[str(key)]
        places[storage.key] = file.tell() + COUNT_BYTES
        file.seek(COUNT_BYTES + storage.numbers * storage.dtype.itemsize, 1)

    def read(storage: Storage) -> bytearray:
        length = storage.numbers * storage.dtype.itemsize
        file.seek(places[storage.key] - COUNT_BYTES)
        if int.from_bytes(file.read(COUNT_BYTES), "little") != storage.numbers or file.tell() + length > size:
            raise ValueError("numbers of a tensor are missing")
        return bytearray(file.read(length))

    return TorchFile(content, read, size)


# -- pickles -------------------------------------------------------------------------------------------------------


class _Instructions(Instructions):
    """Follows pickles of tensors; ``storages`` are those that were met so far."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[str, Storage] = {}

    def named(self, name: str) -> Named:
        if name.partition(".")[0] != "torch" and name != "collections.OrderedDict":
            raise ForeignObject(name)
        return Named(name)

    def called(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, Named) or not isinstance(arguments, tuple):
            raise ValueError("it calls what is no function")
        if function.name == "collections.OrderedDict" and not arguments:
            return {}
        if function.name == "torch._utils._rebuild_parameter":
            return arguments[0]
        if function.name in ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"):
            storage, offset, shape, stride = arguments[:4]
            if not isinstance(storage, Storage):
                return function
            _check_whole((offset, *shape, *stride))
            if len(shape) != len(stride) or len(shape) > MOST_DIMENSIONS:
                raise ValueError("it has a tensor with a shape that is none")
            return StoredTensor(storage, offset, tuple(shape), tuple(stride))
        return function

    def built(self, target: Any, state: Any) -> Any:
        """What a dict or a tensor carries beside is left out."""
        return target

    def stored(self, about: Any) -> Storage | Named:
        """The storage of ('storage', type, key, device, count, and of old a sixth, for a part of another one)."""
        word, kind, key, _, numbers, *more = about
        if word != "storage" or not isinstance(kind, Named) or not isinstance(key, str) or any(more):
            raise ValueError("it has a storage of an unknown form")
        if kind.name not in TYPES:
            return kind
        _check_whole((numbers,))
        storage = Storage(TYPES[kind.name], key, numbers)
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError("a storage is described twice")
        return storage


def _check_whole(numbers: Iterable[Any]) -> None:
    if not all(type(number) is int and 0 <= number < MOST_NUMBERS for number in numbers):
        raise ValueError("it has a tensor with a size that is none")
