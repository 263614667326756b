"""Images that somebody brings along, in no data set: files, folders of them, and Parquet."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, groupby
from pathlib import Path

from ..errors import UserError
from .decode import Encoded
from .folder import SUFFIXES, Files, images_in, is_image
from .look import listing
from .rows import read_images

PARQUET = ".parquet"


class Brought:
    """All of them in one row, in the order in which they were named."""

    def __init__(self, parts: Sequence[Encoded]) -> None:
        self.parts = parts
        self.ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self.ends[-1]

    def read(self, index: int) -> bytes:
        part, within = self._find(index)
        return part.read(within)

    def where(self, index: int) -> str:
        part, within = self._find(index)
        return part.where(within)

    def _find(self, index: int) -> tuple[Encoded, int]:
        number = bisect_right(self.ends, index)
        return self.parts[number], index - (self.ends[number - 1] if number else 0)


def bring(places: Sequence[Path]) -> Brought:
    """What is in these files and folders, at least one image. What a folder holds beside images is passed over."""
    if not places:
        raise UserError("no images are named; name files, folders of them, or Parquet files")
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            found = sorted([*images_in(place), *place.rglob(f"*{PARQUET}")])
            if not found:
                wanted = f"images ({', '.join(SUFFIXES)}) or Parquet files"
                raise UserError(f"{place} has no {wanted}, nor have its subfolders; found {listing(place)}")
            files += found
        elif not place.exists():
            raise UserError(f"there is no file or folder {place}; name images, folders of them, or Parquet files")
        elif is_image(place.name) or place.suffix == PARQUET:
            files.append(place)
        else:
            raise UserError(f"{place} is neither an image ({', '.join(SUFFIXES)}) nor a {PARQUET} file")
    runs = ((is_parquet, list(run)) for is_parquet, run in groupby(files, lambda file: file.suffix == PARQUET))
    brought = Brought([read_images(run) if is_parquet else Files(run) for is_parquet, run in runs])
    if not len(brought):
        raise UserError(f"{places[0]} has no rows, nor have the other files: there is no image to look at")
    return brought
