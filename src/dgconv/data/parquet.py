"""Data sets in the Parquet layout of the Hugging Face hub, whatever their columns are called."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from .base import Data
from .columns import find_columns, refuse_other_numbering
from .corrupt import CorruptImages
from .decode import decode_all, first_size
from .encoded_split import IMAGE_SIZE, EncodedSplit
from .rows import Rows, read_rows, read_schema
from .shards import NEEDS, find_shards
from .stats import IMAGENET, Stats, measure
from .tensor_split import TensorSplit

SMALL = 64  # pixels a side up to which a data set is decoded once and kept in memory


def load_parquet(
    name: str,
    root: Path,
    *,
    image_size: int | None = None,
    label_column: str | None = None,
    workers: int | None = None,
    stats: Stats | None = None,
    corrupt: CorruptImages | None = None,
    needs: str | None = None,
) -> Data:
    """Small images all of one size are kept in memory, unless `image_size` differs; others are streamed.

    `needs` says what the folder may hold, where that is more than Parquet files.
    """
    corrupt = corrupt or CorruptImages()
    train_files, test_files = find_shards(root, needs or NEEDS)
    columns = find_columns(read_schema(train_files[0]), train_files[0], label_column)
    for file in (*train_files[1:], *test_files):
        refuse_other_numbering(read_schema(file), file, columns)
    train_rows, train_labels = read_rows(train_files, columns)
    if not columns.classes:
        columns = replace(columns, classes=[str(number) for number in range(int(train_labels.max()) + 1)])
    test_rows, test_labels = read_rows(test_files, columns)

    if decoded := _decode_small(train_rows, test_rows, image_size, corrupt, workers):
        train_images = decoded[0][0]
        stats = stats or measure(train_images)
        height, width = train_images.shape[-2:]
        return Data(
            name,
            _held(decoded[0], train_labels, stats),
            _held(decoded[1], test_labels, stats),
            columns.classes,
            (3, height, width),
            *stats,
        )
    stats = stats or IMAGENET
    size = image_size or IMAGE_SIZE
    return Data(
        name,
        EncodedSplit(train_rows, train_labels, stats, image_size=size, workers=workers, corrupt=corrupt),
        EncodedSplit(test_rows, test_labels, stats, image_size=size, workers=workers, corrupt=corrupt),
        columns.classes,
        (3, size, size),
        *stats,
    )


Decoded = tuple[Tensor, Tensor]  # images, and the rows they are from


def _decode_small(
    train: Rows, test: Rows, image_size: int | None, corrupt: CorruptImages, workers: int | None
) -> tuple[Decoded, Decoded] | None:
    """All images, if they are small and all of one size, which is the one asked for."""
    size = first_size(train, corrupt)
    wanted = (image_size, image_size) if image_size else size
    if max(size) > SMALL or size != wanted:
        return None
    train_images, test_images = (decode_all(rows, size, corrupt, workers) for rows in (train, test))
    return None if train_images is None or test_images is None else (train_images, test_images)


def _held(decoded: Decoded, labels: Tensor, stats: Stats) -> TensorSplit:
    images, rows = decoded
    pad = min(images.shape[-2:]) // 8  # 4 for the usual 32
    return TensorSplit(images, labels[rows], stats, pad=pad, flip=True, skipped=len(labels) - len(rows))
