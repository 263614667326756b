"""Reading the images and labels of one split out of its Parquet files, and refusing what cannot be used."""

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from ..errors import UserError
from .columns import Columns, describe, holds_bytes

MAX_CLASSES = 100_000  # where the file does not name them: larger numbers are no classes, but ids or times


class Rows:
    """Encoded images as Arrow holds them: in blocks of memory that forked workers share."""

    def __init__(self, files: list[Path], columns: list[pa.ChunkedArray]) -> None:
        self.files = files
        self.ends = list(accumulate(map(len, columns)))
        self.bytes = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.large_binary())

    def __len__(self) -> int:
        return len(self.bytes)

    def read(self, index: int) -> bytes:
        content: bytes = self.bytes[index].as_py()
        return content

    def where(self, index: int) -> str:
        file = bisect_right(self.ends, index)
        return f"{self.files[file]}, row {index - (self.ends[file - 1] if file else 0)}"


def read_schema(file: Path) -> pa.Schema:
    """The columns of a file and the notes the hub left in it."""
    try:
        return pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def read_rows(files: list[Path], columns: Columns) -> tuple[Rows, Tensor]:
    """The images and the labels (int64 [N]) of a split."""
    tables = [_read_table(file, columns) for file in files]
    images = [_image_bytes(table[columns.image]) for table in tables]
    for file, column in zip(files, images, strict=True):
        if column.null_count:
            raise UserError(
                f"{file}, row {_first(pc.is_null(column))} has no image bytes in column {columns.image!r}: "
                "it may only name a file. Save the data set with its images embedded."
            )
    labels = [_labels(table[columns.label], file, columns) for file, table in zip(files, tables, strict=True)]
    if not sum(map(len, labels)):
        raise UserError(f"{files[0]} has no rows, nor have the split's other files. Download the data again.")
    return Rows(files, images), torch.from_numpy(np.concatenate(labels))


def _read_table(file: Path, columns: Columns) -> pa.Table:
    schema = read_schema(file)
    images = [field.name for field in schema if holds_bytes(field.type)]
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    if columns.image not in images or columns.label not in integers:
        raise UserError(
            f"{file} lacks images in a column {columns.image!r} or whole numbers in a column "
            f"{columns.label!r}, which the first training file has; its columns: {describe(schema)}. "
            "Keep only the files of one data set in the folder."
        )
    for name in (columns.image, columns.label):
        if schema.names.count(name) > 1:
            raise UserError(f"{file} has several columns {name!r}. Save the data set with a name for each.")
    try:
        with pq.ParquetFile(file) as parquet:
            return parquet.read(columns=[columns.image, columns.label])
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def _image_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Of one type, though writers differ in theirs."""
    return pc.struct_field(column, "bytes").cast(pa.large_binary())


def _labels(column: pa.ChunkedArray, file: Path, columns: Columns) -> np.ndarray:
    if column.null_count:
        raise UserError(
            f"{file}, row {_first(pc.is_null(column))} has no label in column {columns.label!r}. "
            "Every image needs one: remove those rows or choose another column with --label-column."
        )
    labels = column.to_numpy().astype(np.int64)
    count = len(columns.classes) or MAX_CLASSES
    wrong = np.flatnonzero((labels < 0) | (labels >= count))
    if not len(wrong):
        return labels
    label, place = labels[wrong[0]], f"{file}, row {wrong[0]}"
    if label == -1:
        raise UserError(
            f"{place} has label -1 in column {columns.label!r}: the labels of this split are hidden. "
            "Move its files away, so that the validation split is used, or choose another --label-column."
        )
    raise UserError(
        f"{place} has label {label} in column {columns.label!r}; expected 0 to {count - 1}. "
        "Repair the file, or choose another column with --label-column."
    )


def _first(mask: pa.ChunkedArray) -> int:
    return int(pc.index(mask, True).as_py())


def _unreadable(file: Path, error: Exception) -> UserError:
    reason = str(error).splitlines()[0].rstrip(".")
    return UserError(
        f"cannot read {file} ({file.stat().st_size:,} bytes) as Parquet: {reason}. Download it again, whole."
    )
