"""CIFAR-10 and CIFAR-100: in the Parquet files of the Hugging Face hub, or as their authors publish them."""

from pathlib import Path

from ..errors import UserError
from . import cifar_archive, shards
from .base import Data
from .cifar_archive import SIDE
from .corrupt import CorruptImages
from .facts import DataFacts, DataSetRecord
from .parquet import load_parquet
from .stats import CIFAR10, CIFAR100

KNOWN = {"cifar10": (10, CIFAR10), "cifar100": (100, CIFAR100)}
RECORDS = {
    name: DataSetRecord(
        f"{cifar_archive.needs(name)}; or {shards.NEEDS}",
        DataFacts(50_000, classes, SIDE),
        can_resize=False,
        has_columns=True,
    )
    for name, (classes, _) in KNOWN.items()
}


def load_cifar(
    name: str,
    root: Path,
    *,
    image_size: int | None = None,
    label_column: str | None = None,
    workers: int | None = None,
    corrupt: CorruptImages | None = None,
) -> Data:
    """CIFAR, checked to be what its name says: its known mean and standard deviation belong to it alone."""
    otherwise = f"Use the data set 'parquet' for anything but {name} as published."
    if image_size not in (None, SIDE):
        raise UserError(f"image size {image_size} is not {SIDE}, the size of {name}. {otherwise}")
    count, stats = KNOWN[name]
    if found := cifar_archive.find_form(name, root):
        if label_column not in (None, cifar_archive.LABEL[name]):
            raise UserError(f"{root} has no label column {label_column!r}, only {cifar_archive.LABEL[name]!r}. Omit it")
        return cifar_archive.load_archive(name, *found, count, stats)
    data = load_parquet(
        name, root,
        label_column=label_column, workers=workers, stats=stats, corrupt=corrupt, needs=RECORDS[name].needs,
    )  # fmt: skip
    if len(data.classes) != count:
        raise UserError(f"{root} has {len(data.classes)} classes; {name} has {count}. {otherwise}")
    if data.input_size != (3, SIDE, SIDE):
        raise UserError(f"{root} has images that are not {SIDE} x {SIDE}, as in {name}. {otherwise}")
    return data
