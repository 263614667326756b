"""Reading the images and labels of one split out of its Parquet files, and refusing what cannot be used."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from ..errors import UserError
from ..files import open_file
from .columns import Columns, describe, holds_bytes, image_column
from .pages import measure_columns

MOST_TIMES, FREE = 100, 64 * 2**20  # how much larger than its file a data set may become, and what any may take
BATCH_BYTES = 2**29  # read at a time: Arrow holds no more than 2 GiB of a column in one piece
BATCH_ROWS = 4, 1024  # as many at least, as one by one takes long, and at most
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
    with _reading(file) as parquet:
        return parquet.schema_arrow


def read_rows(files: list[Path], columns: Columns) -> tuple[Rows, Tensor]:
    """The images and the labels (int64 [N]) of a split."""
    tables = [_read_table(file, columns) for file in files]
    images = [_with_bytes(table[columns.image], file, columns.image) for file, table in zip(files, tables, strict=True)]
    labels = [_labels(table[columns.label], file, columns) for file, table in zip(files, tables, strict=True)]
    if not sum(map(len, labels)):
        raise UserError(f"{files[0]} has no rows, nor have the split's other files. Download the data again.")
    return Rows(files, images), torch.from_numpy(np.concatenate(labels))


def read_images(files: list[Path]) -> Rows:
    """The images of files that need no labels."""
    columns = [
        _with_bytes(_read_columns(file, [f"{name}.bytes"])[name], file, name) for file, name in _images_of(files)
    ]
    return Rows(files, columns)


def _images_of(files: list[Path]) -> Iterator[tuple[Path, str]]:
    for file in files:
        yield file, image_column(read_schema(file), file)


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
    return _read_columns(file, [f"{columns.image}.bytes", columns.label])


def _read_columns(file: Path, names: list[str]) -> pa.Table:
    with _reading(file) as parquet:
        rows = _rows_at_a_time(file, parquet, names)
        batches, room = [], _room(file)
        for batch in parquet.iter_batches(rows, columns=names):
            room -= batch.nbytes
            if room < 0:
                raise ValueError(f"its rows have more than {MOST_TIMES} times the bytes of the file")
            batches.append(batch)
        return pa.Table.from_batches(batches, parquet.schema_arrow if not batches else batches[0].schema)


def _room(file: Path) -> int:
    return MOST_TIMES * file.stat().st_size + FREE


def _rows_at_a_time(file: Path, parquet: pq.ParquetFile, names: list[str]) -> int:
    """How many rows hold no more memory than is meant, whatever a value of a page may be."""
    rows, schema = parquet.metadata.num_rows, parquet.schema
    if rows > file.stat().st_size:
        raise ValueError(f"it says that it has {rows:,} rows, more than bytes")
    columns = [number for number in range(len(schema)) if schema.column(number).path in names]
    with open_file(file) as content:
        pages = measure_columns(content, columns, of=len(schema))
    if pages.total > _room(file):
        raise ValueError(f"its pages have more than {MOST_TIMES} times the bytes of the file")
    least, most = BATCH_ROWS
    return max(least, min(most, BATCH_BYTES // max(1, pages.largest)))


def _with_bytes(column: pa.ChunkedArray, file: Path, name: str) -> pa.ChunkedArray:
    """The bytes of the images as one type, though writers differ in theirs; each row must have some."""
    images = pc.struct_field(column, "bytes").cast(pa.large_binary())
    if images.null_count:
        raise UserError(
            f"{file}, row {_first(pc.is_null(images))} has no image bytes in column {name!r}: "
            "it may only name a file. Save the data set with its images embedded."
        )
    return images


def _labels(column: pa.ChunkedArray, file: Path, columns: Columns) -> np.ndarray:
    if column.null_count:
        raise UserError(
            f"{file}, row {_first(pc.is_null(column))} has no label in column {columns.label!r}. "
            "Every image needs one: remove those rows or choose another column with `label_column`."
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
            "Move its files away, so that the validation split is used, or choose another `label_column`."
        )
    raise UserError(
        f"{place} has label {label} in column {columns.label!r}; expected 0 to {count - 1}. "
        "Repair the file, or choose another column with `label_column`."
    )


def _first(mask: pa.ChunkedArray) -> int:
    return int(pc.index(mask, True).as_py())


@contextmanager
def _reading(file: Path) -> Iterator[pq.ParquetFile]:
    try:
        with open_file(file), pq.ParquetFile(file) as parquet:  # the former refuses what is no file
            yield parquet
    except UserError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> UserError:
    reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return UserError(
        f"cannot read {file} ({file.stat().st_size:,} bytes) as Parquet: {reason}. Download it again, whole."
    )
