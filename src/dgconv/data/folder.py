"""Images in one folder per class: the layout most people's own data already has."""

import os
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from ..errors import UserError
from ..files import read_whole
from .base import Data
from .corrupt import CorruptImages
from .decode import MOST_BYTES
from .encoded_split import IMAGE_SIZE, EncodedSplit
from .facts import DataFacts, DataSetRecord
from .look import not_found, require_folder, subfolders
from .stats import IMAGENET

NEEDS = "train/<class>/ and test/<class>/ with images"
RECORD = DataSetRecord(NEEDS, DataFacts(1_281_167, 1000, IMAGE_SIZE, "assumed"))  # ImageNet, unless it is looked into
ADVICE = f"Give `data_dir` the folder that holds {NEEDS}."
TEST_NAMES = ("test", "val", "validation")
SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".ppm", ".pgm", ".gif", ".tif", ".tiff")


class Files:
    """Paths of encoded images, in one Arrow block: a list would be copied into each forked worker."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = pa.array([os.fsencode(path) for path in paths], pa.large_binary())

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        return read_whole(self._path(index), MOST_BYTES)

    def where(self, index: int) -> str:
        return str(self._path(index))

    def only(self, chosen: Tensor) -> "Files":
        """Those that are marked true."""
        return Files([self._path(index) for index in chosen.nonzero().flatten().tolist()])

    def _path(self, index: int) -> Path:
        return Path(os.fsdecode(self.paths[index].as_py()))


def load_folder(
    root: Path,
    *,
    image_size: int | None = None,
    workers: int | None = None,
    corrupt: CorruptImages | None = None,
    test_share: float | None = None,
) -> Data:
    """The classes are the folders in train/; the test split is in test/, val/ or validation/, or a share of train/."""
    require_folder(root, NEEDS)
    train_root, test_root = root / "train", test_folder(root)
    if not train_root.is_dir():
        raise not_found(root, "train/", ADVICE)
    if test_root is None and test_share is None:
        hint = "Or give `test_share`, such as 0.2, to test on a part of train/."
        raise not_found(root, f"test split ({'/, '.join(TEST_NAMES)}/)", f"{ADVICE} {hint}")
    if test_root is not None and test_share is not None:
        raise UserError(f"{root} has test images, in {test_root.name}/. Leave `test_share` out")

    classes = [folder.name for folder in subfolders(train_root)]
    size = image_size or IMAGE_SIZE
    files, labels = _read_split(train_root, classes)
    if test_root is None:
        assert test_share is not None
        parts = _divided(files, labels, test_share, train_root)
    else:
        parts = (files, labels), _read_split(test_root, classes)
    train, test = (EncodedSplit(*part, IMAGENET, image_size=size, workers=workers, corrupt=corrupt) for part in parts)
    return Data("folder", train, test, classes, (3, size, size), *IMAGENET)


def test_folder(root: Path) -> Path | None:
    """Where the test images are, if there are any."""
    return next((root / name for name in TEST_NAMES if (root / name).is_dir()), None)


def _divided(files: Files, labels: Tensor, share: float, root: Path) -> tuple[tuple[Files, Tensor], ...]:
    """The images to train on and those to test on: of each class the same share, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        of_class = (labels == label).nonzero().flatten()
        if len(of_class) < 2:
            raise UserError(
                f"a class in {root} has one image only, which cannot be both trained and tested on. Add some to it"
            )
        count = min(len(of_class) - 1, max(1, round(share * len(of_class))))
        is_test[of_class[torch.randperm(len(of_class), generator=generator)[:count]]] = True
    return tuple((files.only(chosen), labels[chosen]) for chosen in (~is_test, is_test))


def _read_split(folder: Path, classes: list[str]) -> tuple[Files, Tensor]:
    """The images of every class folder, and the number of their class in `classes`."""
    class_folders = subfolders(folder)
    if not class_folders:
        raise not_found(folder, f"class folders with images ({', '.join(SUFFIXES)})", ADVICE)
    paths: list[Path] = []
    labels: list[int] = []
    for class_folder in class_folders:
        if class_folder.name not in classes:
            raise UserError(
                f"{class_folder} is a class that train/ does not have; it has {', '.join(classes[:6])}"
                f"{', ...' if len(classes) > 6 else ''}. Rename or remove the folder, or add it to train/."
            )
        images = images_in(class_folder)
        if not images:
            raise not_found(class_folder, f"images ({', '.join(SUFFIXES)})", "Add some or remove the folder.")
        paths += images
        labels += [classes.index(class_folder.name)] * len(images)
    return Files(paths), torch.tensor(labels)


def images_in(class_folder: Path) -> list[Path]:
    """The images in a folder, its subfolders and linked ones, but none hidden: those are copies, as macOS's ._1.jpg."""
    images: list[Path] = []
    seen: set[str] = set()  # folders, each read once: a link to one above itself would never end
    for place, folders, names in os.walk(class_folder, followlinks=True, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        images += [Path(place, name) for name in names if is_image(name)]
    return sorted(images)


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _raise(error: OSError) -> None:
    """A folder that cannot be read is not one without images."""
    raise error
