"""Tensors in a safetensors file, each with a checksum: a file that lost a bit on a disk or on its way is refused.

Checksums are against accidents. Whoever means to change a file can change them, too.
"""

import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..files import open_file
from ..values import load_json

CHECKSUMS = "checksums"  # in the metadata; the only entry where there is no other, whose order is left to chance
OF_OTHERS = "format"  # what other programs write there
LONGEST_HEADER = 16 * 2**20  # bytes, which name some hundred thousand tensors


class TensorFile(NamedTuple):
    """What is in a file: tensors by name, and texts by name."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The content of a file that :func:`read_tensors` reads. The same tensors give the same bytes."""
    texts = dict(metadata or {})
    sums = {"tensors": {name: checksum(tensors[name]) for name in sorted(tensors)}, "texts": _checksum_of_texts(texts)}
    return save(dict(tensors), texts | {CHECKSUMS: json.dumps(sums)})


def read_tensors(path: Path, known: Collection[str] = ()) -> TensorFile:
    """Everything in a file, checked. ``known`` are the texts that an older one, which has no checksums, may have.

    An ``OSError`` where the file cannot be read, a ``ValueError`` where it is damaged or no such file.
    """
    _check_header_length(path)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
            sums = {name: checksum(tensor) for name, tensor in stored.items()}
            tensors = {name: tensor.clone() for name, tensor in stored.items()}  # and any true is 1
    except (SafetensorError, RuntimeError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(str(error)) from None
    texts = {name: text for name, text in metadata.items() if name != CHECKSUMS}
    if CHECKSUMS in metadata:
        _compare(load_json(metadata[CHECKSUMS]), sums, texts)
    elif unknown := texts.keys() - {OF_OTHERS, *known}:  # a damaged name would leave all else unchecked
        raise ValueError(f"it has no {CHECKSUMS}, but {', '.join(map(repr, sorted(unknown)))}")
    return TensorFile(tensors, texts)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a file by name, without reading these; errors as of :func:`read_tensors`."""
    _check_header_length(path)
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, RuntimeError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(str(error)) from None


def checksum(tensor: Tensor) -> str:
    """CRC-32 of the type, the shape and the numbers of a tensor on the CPU."""
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return f"{zlib.crc32(content, zlib.crc32(f'{tensor.dtype} {list(tensor.shape)}'.encode())):08x}"


def _checksum_of_texts(texts: Mapping[str, str]) -> str:
    return f"{zlib.crc32(json.dumps(sorted(texts.items())).encode()):08x}"


def _compare(written: Any, sums: dict[str, str], texts: dict[str, str]) -> None:
    if not isinstance(written, dict) or not isinstance(written.get("tensors"), dict):
        raise ValueError(f"its {CHECKSUMS} are no table")
    if written["tensors"].keys() != sums.keys():
        raise ValueError(f"its {CHECKSUMS} are of other tensors")
    for name, found in sums.items():
        if found != written["tensors"][name]:
            raise ValueError(f"the tensor {name!r} is not as it was written: its checksum differs")
    if _checksum_of_texts(texts) != written.get("texts"):
        raise ValueError("its metadata is not as it was written: its checksum differs")


def _check_header_length(path: Path) -> None:
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"its header has {length:,} bytes; at most {LONGEST_HEADER:,} are read")
