"""Data sets in Parquet files: odd columns, damaged notes, pages that are not what the notes say."""

import json
from functools import cache
from io import BytesIO
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from dgconv.data.parquet import load_parquet
from tests.fuzz.damage import Files, damage, folder_of, restore, store
from tests.fuzz.outcome import Wrong
from tests.fuzz.thrift import change_struct, read_struct, write_struct
from tests.fuzz.values import change_value

TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"
NAMES = (TRAIN,) * 20 + ("train-00000-of-00002.parquet", "train-00000-of-3000000000.parquet", "train-x.parquet")
MAGIC, LENGTH_BYTES = b"PAR1", 4
ROWS = 5
BASES = 80
FEATURES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["a", "b", "c"]}}


def _png(color: int, side: int = 8) -> bytes:
    file = BytesIO()
    Image.new("RGB", (side, side), (color, 0, 255 - color)).save(file, "PNG")
    return file.getvalue()


def _table(rng: Random) -> pa.Table:
    """Mostly as the hub has it."""
    side = rng.choice((8, 8, 8, 80))
    images: list[Any] = [{"bytes": _png(rng.randrange(256), side), "path": None} for _ in range(ROWS)]
    labels: list[Any] = [rng.randrange(3) for _ in range(ROWS)]
    if rng.random() < 0.3:
        images[rng.randrange(ROWS)] = rng.choice((None, {"bytes": None}, {"bytes": b""}, {"bytes": b"no image"}))
    if rng.random() < 0.3:
        labels[rng.randrange(ROWS)] = rng.choice((None, -1, 3, 100))
    inner = rng.choice((pa.binary(),) * 6 + (pa.large_binary(), pa.string()))
    kind = pa.struct([("bytes", inner), ("path", pa.string())])
    try:
        arrays = [pa.array(images, kind), pa.array(labels, rng.choice((pa.int64(),) * 4 + (pa.int8(), pa.uint16())))]
    except (pa.ArrowException, TypeError, OverflowError):  # numbers or texts that are none
        return _table(rng)
    names = rng.choice((["image", "label"],) * 5 + (["img", "fine_label"], ["label", "image"], ["a", "a"]))
    features: Any = json.loads(json.dumps(FEATURES))
    if rng.random() < 0.4:
        features = change_value(features, rng)
    notes = json.dumps({"info": {"features": features}})
    if rng.random() < 0.1:
        notes = rng.choice(("[" * 3000, "{}", "null", "1" * 5000, '{"info": []}'))
    return pa.table(arrays, names).replace_schema_metadata({"huggingface": notes} if rng.random() < 0.9 else None)


@cache
def _bases() -> list[bytes]:
    rng, found = Random(0), []
    for _ in range(BASES):
        file = BytesIO()
        pq.write_table(
            _table(rng),
            file,
            row_group_size=rng.choice((2, 3, 100)),
            compression=rng.choice(("snappy", "none", "gzip", "zstd", "brotli")),
            use_dictionary=rng.random() < 0.5,
            data_page_version=rng.choice(("1.0", "2.0")),
            write_statistics=rng.random() < 0.5,
            data_page_size=rng.choice((64, 1 << 20)),
        )
        found.append(file.getvalue())
    return found


@cache
def _good() -> bytes:
    file = BytesIO()
    images = [{"bytes": _png(40 * index), "path": None} for index in range(ROWS)]
    pq.write_table(pa.table({"image": images, "label": [0, 1, 2, 1, 0]}), file)
    return file.getvalue()


def make(rng: Random) -> Files:
    content = rng.choice(_bases())
    choice = rng.random()
    if choice < 0.6:
        content = _change_notes(content, rng)
    elif choice < 0.9:
        content = damage(content, rng)
    if rng.random() < 0.5:
        return {rng.choice(NAMES): content, TEST: _good()}
    return {TRAIN: _good(), TEST: content}


def _change_notes(content: bytes, rng: Random) -> bytes:
    """What stands at the end: schema, row groups, where pages are and how large."""
    tail = LENGTH_BYTES + len(MAGIC)
    length = int.from_bytes(content[-tail : -len(MAGIC)], "little")
    fields, _ = read_struct(content[-tail - length : -tail])
    for _ in range(rng.choice((1, 1, 2, 3))):
        change_struct(fields, rng)
    notes = write_struct(fields)
    return content[: -tail - length] + notes + len(notes).to_bytes(LENGTH_BYTES, "little") + MAGIC


def run(files: Files) -> str:
    with folder_of(files) as folder:
        data = load_parquet("parquet", folder, workers=0)
        for split in (data.train, data.test):
            images, labels = next(iter(split.batches(2, train=False)))
            if not 0 < len(images) == len(labels) <= 2 or images.dtype != torch.float32:
                raise Wrong(f"a batch has {list(images.shape)} images and {list(labels.shape)} labels")
            if int(labels.min()) < 0 or int(labels.max()) >= len(data.classes):
                raise Wrong(f"labels {labels.tolist()} of {len(data.classes)} classes")
    return "accepted"


__all__ = ["make", "restore", "run", "store"]
