"""Finding the Parquet files of a data set downloaded from the Hugging Face hub."""

import re
from itertools import count, islice
from pathlib import Path

from ..errors import UserError
from .look import not_found, require_folder, subfolders

NEEDS = "train-*.parquet and test-*.parquet (itself, or in data/ or one other subfolder)"
TEST_NAMES = ("test", "validation", "val")
SHOWN = 6  # names in a message
SHARD = re.compile(r"-(\d+)-of-(\d+)")


def find_shards(root: Path, needs: str = NEEDS) -> tuple[list[Path], list[Path]]:
    """The files of the training and of the test split, each in order and complete; `needs` is for messages."""
    require_folder(root, needs)
    folder = _folder_of(root, needs)
    train = _shards(folder, "train")
    test = next(filter(None, (_shards(folder, name) for name in TEST_NAMES)), None)
    if test is None:
        names = ", ".join(f"{name}-*.parquet" for name in TEST_NAMES)
        raise not_found(folder, f"test split ({names})", "Download it next to the training split.")
    return train, test


def _folder_of(root: Path, needs: str) -> Path:
    """The folder with the training split: the root, data/, or the only other subfolder that has one."""
    for folder in (root, root / "data"):
        if _shards(folder, "train"):
            return folder
    others = [folder for folder in subfolders(root) if _shards(folder, "train")]
    if not others:
        raise not_found(
            root,
            "train-*.parquet, nor has data/ or another subfolder",
            f"Give `data_dir` the folder with {needs}.",
        )
    if len(others) > 1:
        names = ", ".join(folder.name for folder in others)
        raise UserError(f"{root} holds several data sets: {names}. Give `data_dir` one of these subfolders.")
    return others[0]


def _shards(folder: Path, split: str) -> list[Path]:
    shards = sorted(folder.glob(f"{split}-*.parquet"))
    _refuse_missing(shards, split)
    return shards


def _refuse_missing(shards: list[Path], split: str) -> None:
    """Half a data set trains without complaint and reports a wrong accuracy."""
    numbers = [(int(match[1]), int(match[2])) for shard in shards if (match := SHARD.search(shard.name)) is not None]
    for total in {total for _, total in numbers}:
        there = {number for number, of in numbers if of == total and number < total}
        if missing := total - len(there):
            first = islice((number for number in count() if number not in there), min(missing, SHOWN))
            names = [f"{split}-{number:05d}-of-{total:05d}.parquet" for number in first]
            raise UserError(
                f"{shards[0].parent} lacks {missing} of the {total} files of its {split} split: "
                f"{', '.join(names)}{', ...' if missing > SHOWN else ''}. Download them into it."
            )
    if len(numbers) > max((total for _, total in numbers), default=0):
        names = [shard.name for shard in shards]
        raise UserError(
            f"{shards[0].parent} holds more than one copy of its {split} split: {', '.join(names[:SHOWN])}. "
            "Keep the files of one."
        )
