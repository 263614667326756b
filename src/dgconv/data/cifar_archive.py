"""CIFAR as its authors publish it: archives of pickles or of plain bytes, as they are or unpacked."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..files import open_file, read_whole
from .base import Data
from .look import listing
from .pickles import read_byte_arrays
from .stats import Stats
from .tensor_split import TensorSplit

SIDE = 32
PIXELS = 3 * SIDE * SIDE
MOST_BYTES = 2**28  # of a file; the largest has 155 MB
MOST_TOGETHER = 2**29  # in an archive
BLOCK = 512  # bytes of a tar
LABEL = {"cifar10": "label", "cifar100": "fine_label"}


@dataclass(frozen=True)
class Form:
    """One of the forms of a data set. ``labels`` is the key of the labels or, in plain bytes, their place."""

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str
    name_key: str
    labels: str | int

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test)


_NUMBERS = range(1, 6)
FORMS = {
    "cifar10": (
        Form(
            "cifar-10-python.tar.gz", "cifar-10-batches-py", tuple(f"data_batch_{number}" for number in _NUMBERS),
            "test_batch", "batches.meta", "label_names", "labels",
        ),
        Form(
            "cifar-10-binary.tar.gz", "cifar-10-batches-bin", tuple(f"data_batch_{number}.bin" for number in _NUMBERS),
            "test_batch.bin", "batches.meta.txt", "", 0,
        ),
    ),
    "cifar100": (
        Form(
            "cifar-100-python.tar.gz", "cifar-100-python", ("train",), "test", "meta", "fine_label_names", "fine_labels"
        ),
        Form(
            "cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin",), "test.bin", "fine_label_names.txt", "", 1
        ),
    ),
}  # fmt: skip


def find_form(name: str, root: Path) -> tuple[Form, Path] | None:
    """The first form that is there, and where: the folder with its files, or the archive."""
    for form in FORMS[name]:
        for place in (root, root / form.folder):
            if (place / form.test).is_file() and any((place / file).is_file() for file in form.train):
                return form, place
        for place in (root, root / form.archive):
            if place.name == form.archive and place.is_file():
                return form, place
    return None


def needs(name: str) -> str:
    archives = " or ".join(form.archive for form in FORMS[name])
    return f"{archives}, as it is or unpacked"


def load_archive(name: str, form: Form, place: Path, count: int, stats: Stats) -> Data:
    """All of it, kept in memory; ``count`` classes."""
    contents = dict(_read_folder(place, form) if place.is_dir() else _read_archive(place, form))
    if missing := [file for file in form.files if file not in contents]:
        there = listing(place) if place.is_dir() else ", ".join(sorted(contents)) or "nothing of it"
        raise UserError(f"{place} has no {', '.join(missing)}; found {there}. Unpack or download {form.archive} again")
    train = [_read_batch(place, file, contents.pop(file), form, count) for file in form.train]
    test = _read_batch(place, form.test, contents.pop(form.test), form, count)
    names = _read_names(place, form, contents.get(form.names)) or [str(number) for number in range(count)]
    if len(names) != count:
        raise UserError(f"{place / form.names} names {len(names)} classes; {name} has {count}. {_again(form)}")
    together = torch.cat([images for images, _ in train]), torch.cat([labels for _, labels in train])
    of_training, of_test = (TensorSplit(*part, stats, pad=SIDE // 8, flip=True) for part in (together, test))
    return Data(name, of_training, of_test, names, (3, SIDE, SIDE), *stats)


# -- files, from a folder or an archive ----------------------------------------------------------------------------


def _read_folder(folder: Path, form: Form) -> Iterator[tuple[str, bytes]]:
    for name in (*form.files, form.names):
        try:
            yield name, read_whole(folder / name, MOST_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(f"{folder / name} cannot be read: {error.strerror}") from None


def _read_archive(archive: Path, form: Form) -> Iterator[tuple[str, bytes]]:
    """The form's files of a tar.gz. Nothing is unpacked to the disk, whatever paths the archive has."""
    wanted = {f"{form.folder}/{name}": name for name in (*form.files, form.names)}
    try:
        with open_file(archive) as file, gzip.GzipFile(fileobj=file) as tar:
            for path, content in _members(tar, wanted):
                yield wanted[path], content
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{archive} cannot be read: {reason!s:.200}. {_again(form)}") from None


def _members(tar: BinaryIO | gzip.GzipFile, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The plain form that the archives have: a block with path and size, and then the file, filled up to whole blocks.

    ``tarfile`` reads notes of any length into memory.
    """
    left = MOST_TOGETHER
    while (header := tar.read(BLOCK)).strip(b"\0"):
        path = header[:100].partition(b"\0")[0].decode("latin-1").removeprefix("./")
        size = int(header[124:136].strip(b" \0") or b"0", 8)
        if len(header) < BLOCK or size < 0:
            raise ValueError("it is no tar, or a damaged one")
        left -= BLOCK + size
        if size > MOST_BYTES or left < 0:
            raise ValueError(f"{path!r:.60} has {size:,} bytes, more than any file of it should have")
        blocks = -(-size // BLOCK) * BLOCK
        if path in wanted and header[156:157] in (b"0", b"\0"):
            content = tar.read(blocks)[:size]
            if len(content) < size:
                raise EOFError("it ends too early")
            yield path, content
        else:
            while blocks > 0 and (passed := len(tar.read(min(blocks, 2**20)))):
                blocks -= passed


# -- what is in a file ---------------------------------------------------------------------------------------------


def _read_batch(place: Path, file: str, content: bytes, form: Form, count: int) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 3, 32, 32] and labels [N]."""
    where = place / file
    pixels, labels = (
        _from_bytes(where, content, form.labels, form)
        if isinstance(form.labels, int)
        else _from_pickle(where, content, form.labels, form)
    )
    if not len(labels) or len(labels) != len(pixels):
        raise UserError(f"{where} has {len(pixels)} images and {len(labels)} labels. {_again(form)}")
    if not all(type(label) is int and 0 <= label < count for label in labels):
        raise UserError(f"{where} has labels that are no numbers from 0 to {count - 1}. {_again(form)}")
    images = np.array(pixels).reshape(-1, 3, SIDE, SIDE)  # a copy, which may be written to
    return torch.from_numpy(images), torch.tensor(labels, dtype=torch.int64)


def _from_bytes(where: Path, content: bytes, label_at: int, form: Form) -> tuple[np.ndarray, list[int]]:
    before = label_at + 1  # bytes of labels; the last of them is the one
    if not content or len(content) % (before + PIXELS):
        raise UserError(f"{where} has {len(content)} bytes, which is no multiple of {before + PIXELS}. {_again(form)}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, before + PIXELS)
    return rows[:, before:], rows[:, label_at].tolist()


def _from_pickle(where: Path, content: bytes, key: str, form: Form) -> tuple[np.ndarray, list[Any]]:
    batch = _read_pickle(where, content, form)
    pixels, labels = batch.get("data"), batch.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise UserError(f"{where} has no array 'data' with {PIXELS} columns. {_again(form)}")
    if not isinstance(labels, list):
        raise UserError(f"{where} has no list {key!r}. {_again(form)}")
    return pixels, labels


def _read_names(place: Path, form: Form, content: bytes | None) -> list[str]:
    if content is None:
        return []
    if not form.name_key:
        return content.decode("latin-1").split()
    names = _read_pickle(place / form.names, content, form).get(form.name_key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{place / form.names} has no list of names {form.name_key!r}. {_again(form)}")
    return names


def _read_pickle(where: Path, content: bytes, form: Form) -> dict[str | int, Any]:
    try:
        return read_byte_arrays(content)
    except ValueError as error:
        raise UserError(f"{where} is not a file of CIFAR: {error}. {_again(form)}") from None


def _again(form: Form) -> str:
    return f"Take it from {form.archive} as published"
