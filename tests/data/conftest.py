"""Tiny data sets on disk, written as the Hugging Face `datasets` library writes them."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image


def _encode(pixels: np.ndarray, format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format)
    return buffer.getvalue()


@pytest.fixture
def encode() -> Callable[..., bytes]:
    return _encode


@pytest.fixture
def noise() -> Callable[..., list[np.ndarray]]:
    """Random RGB images, the same in every run."""

    def make(count: int, height: int = 8, width: int = 8, seed: int = 0) -> list[np.ndarray]:
        return list(np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8))

    return make


@pytest.fixture
def write_parquet() -> Callable[..., Path]:
    """One Parquet file; `names` are the classes of `label`; `metadata=False` leaves the hub's notes out."""

    def write(
        file: Path,
        images: Sequence[np.ndarray | bytes | None],
        labels: Sequence[int | None],
        *,
        names: Sequence[str] | None = ("a", "b", "c"),
        image: str = "image",
        label: str = "label",
        extra: dict[str, list[Any]] | None = None,
        extra_features: dict[str, Any] | None = None,
        metadata: bool = True,
        row_group_size: int = 3,
    ) -> Path:
        rows = [
            {"bytes": _encode(pixels) if isinstance(pixels, np.ndarray) else pixels, "path": None} for pixels in images
        ]
        struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table({image: pa.array(rows, struct), **(extra or {}), label: pa.array(labels, pa.int64())})
        if metadata:
            features = {
                image: {"_type": "Image"},
                label: {"_type": "ClassLabel", **({"names": list(names)} if names else {})},
                **(extra_features or {}),
            }
            notes = json.dumps({"info": {"features": features}})
            table = table.replace_schema_metadata({"huggingface": notes})
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file, row_group_size=row_group_size)
        return file

    return write


@pytest.fixture
def write_images() -> Callable[..., None]:
    """Image files with the given paths below `root`, each of its own noise and size."""

    def write(root: Path, *paths: str) -> None:
        rng = np.random.default_rng(len(paths))
        for path in paths:
            height, width = rng.integers(20, 60, 2)
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(file)

    return write
