"""The one door to every data set, by name."""

from collections.abc import Iterable
from pathlib import Path

from ..errors import UserError, unknown_name
from . import folder, shards
from .base import Data
from .cifar import load_cifar
from .corrupt import CorruptImages
from .digits import load_digits
from .folder import load_folder
from .parquet import load_parquet

NEEDED_FOLDER = {
    "digits": None,
    "cifar10": shards.NEEDS,
    "cifar100": shards.NEEDS,
    "parquet": shards.NEEDS,
    "folder": folder.NEEDS,
}


def list_data() -> list[str]:
    """The names `load_data` knows."""
    return list(NEEDED_FOLDER)


def refuse_unused_folder(data_dir: str | Path | None, names: Iterable[str]) -> None:
    """Refuse a folder that none of these data sets would be read from."""
    if data_dir is not None and set(names) == {"digits"}:
        others = ", ".join(name for name, needed in NEEDED_FOLDER.items() if needed)
        raise UserError(
            f"nothing would be read from data folder {data_dir}: the digits are embedded. "
            f"Leave --data-dir out; it is for {others}."
        )


def load_data(
    name: str,
    data_dir: str | Path | None = None,
    *,
    image_size: int | None = None,
    label_column: str | None = None,
    workers: int | None = None,
    skip_corrupt_images: bool = False,
) -> Data:
    """Load a data set by name.

    `data_dir` is its folder (the embedded digits take none); `image_size` overrules its usual input size;
    `label_column` chooses among several labels in Parquet files; `workers` processes decode images that are
    large or many (None: one a core, at most 8; 0: none). A corrupt image is an error that names it or, with
    `skip_corrupt_images`, a warning that does, and then the image is skipped as `Split.batches` says.
    """
    if name not in NEEDED_FOLDER:
        raise unknown_name("data set", name, list_data())
    if image_size is not None and image_size < 1:
        raise UserError(f"image size {image_size} is not allowed; give a whole number of at least 1.")
    if workers is not None and workers < 0:
        raise UserError(f"{workers} workers are not possible; give 0 to decode without worker processes.")
    if label_column is not None and name in ("digits", "folder"):
        raise UserError(f"label column {label_column!r} has no meaning for {name!r}, only for Parquet; omit it.")

    refuse_unused_folder(data_dir, [name])
    if name == "digits":
        return load_digits(image_size)
    if data_dir is None:
        raise UserError(f"data set {name!r} needs --data-dir, the folder that holds {NEEDED_FOLDER[name]}.")
    root = Path(data_dir).expanduser()
    corrupt = CorruptImages(skip_corrupt_images)
    if name == "folder":
        return load_folder(root, image_size=image_size, workers=workers, corrupt=corrupt)
    load = load_parquet if name == "parquet" else load_cifar
    return load(name, root, image_size=image_size, label_column=label_column, workers=workers, corrupt=corrupt)
