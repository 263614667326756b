"""The one door to every data set, by name."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ..errors import UserError, unknown_name
from . import cifar, digits, folder, shards
from .base import Data
from .corrupt import CorruptImages
from .facts import DataFacts, DataSetRecord
from .parquet import load_parquet

log = logging.getLogger(__name__)

DATA_SETS = {
    "digits": digits.RECORD,
    **cifar.RECORDS,
    "parquet": DataSetRecord(shards.NEEDS, has_columns=True),
    "folder": folder.RECORD,
}


def list_data() -> list[str]:
    """The names `load_data` knows."""
    return list(DATA_SETS)


def find_data(name: str) -> DataSetRecord:
    if name not in DATA_SETS:
        raise unknown_name("data set", name, DATA_SETS)
    return DATA_SETS[name]


def refuse_unused_folder(data_dir: str | Path | None, names: Iterable[str]) -> None:
    """Refuse a folder that none of these data sets would be read from."""
    if data_dir is not None and not any(find_data(name).needs for name in names):
        others = ", ".join(name for name, record in DATA_SETS.items() if record.needs)
        raise UserError(
            f"nothing would be read from data folder {data_dir}: the digits are embedded. "
            f"Leave `data_dir` out; it is for {others}."
        )


def look_at_data(
    name: str,
    data_dir: str | Path | None = None,
    *,
    image_size: int | None = None,
    label_column: str | None = None,
    skip_corrupt_images: bool = False,
    test_share: float | None = None,
) -> DataFacts:
    """The facts of a data set, by its name where that says it all, otherwise read from its folder."""
    record = find_data(name)
    has_folder = data_dir is not None and Path(data_dir).expanduser().is_dir()
    if record.facts is None or (record.facts.source == "assumed" and has_folder):
        data = load_data(
            name,
            data_dir,
            image_size=image_size,
            label_column=label_column,
            skip_corrupt_images=skip_corrupt_images,
            test_share=test_share,
        )
        return DataFacts(len(data.train), len(data.classes), data.input_size[-1], "counted")
    side = record.facts.side
    if image_size not in (None, side) and not record.can_resize:
        raise UserError(f"image size {image_size} is not {side}, the size of {name}. Leave it out")
    return replace(record.facts, side=image_size or side)


def load_data(
    name: str,
    data_dir: str | Path | None = None,
    *,
    image_size: int | None = None,
    label_column: str | None = None,
    workers: int | None = None,
    skip_corrupt_images: bool = False,
    test_share: float | None = None,
) -> Data:
    """Load a data set by name.

    `data_dir` is its folder (the embedded digits take none); `image_size` overrules its usual input size;
    `label_column` chooses among several labels in Parquet files; `workers` processes decode images that are
    large or many (None: one a core, at most 8; 0: none). Of a folder without test images, `test_share` of those to
    train on are taken, always the same. A corrupt image is an error that names it or, with
    `skip_corrupt_images`, a warning that does, and then the image is skipped as `Split.batches` says.
    """
    record = find_data(name)
    if image_size is not None and image_size < 1:
        raise UserError(f"image size {image_size} is not allowed; give a whole number of at least 1.")
    if workers is not None and workers < 0:
        raise UserError(f"{workers} workers are not possible; give 0 to decode without worker processes.")
    if label_column is not None and not record.has_columns:
        raise UserError(f"label column {label_column!r} has no meaning for {name!r}, only for Parquet; omit it.")

    if test_share is not None and name != "folder":
        raise UserError(f"`test_share` is for folders of images without a test split, not for {name}. Leave it out")

    refuse_unused_folder(data_dir, [name])
    if record.needs is None:
        return digits.load_digits(image_size)
    if data_dir is None:
        raise UserError(f"data set {name!r} needs `data_dir`, the folder that holds {record.needs}.")
    root = Path(data_dir).expanduser()
    corrupt = CorruptImages(skip_corrupt_images)
    if name == "folder":
        data = folder.load_folder(root, image_size=image_size, workers=workers, corrupt=corrupt, test_share=test_share)
    else:
        load = cifar.load_cifar if name in cifar.RECORDS else load_parquet
        data = load(name, root, image_size=image_size, label_column=label_column, workers=workers, corrupt=corrupt)
    _warn_of_classes(data, root)
    return data


def _warn_of_classes(data: Data, root: Path) -> None:
    """What can be trained on, and is rarely meant."""
    if len(data.classes) == 1:
        log.warning("%s has one class only, %s: there is nothing to tell apart", root, data.classes[0])
    there = set(data.test.labels.unique().tolist())
    if missing := [name for number, name in enumerate(data.classes) if number not in there]:
        log.warning(
            "%s: %d of %d classes have no test image, so that errors say nothing about them: %s",
            root,
            len(missing),
            len(data.classes),
            ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else ""),
        )
