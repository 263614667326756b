"""Encoded images, wherever they are stored, and decoding them with Pillow."""

import ctypes
import multiprocessing
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from io import BytesIO
from typing import Protocol, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..environment import usable_cores
from ..errors import UserError
from .corrupt import CorruptImage, CorruptImages

# Named, and most frequent first, because trying every format Pillow knows takes longer than a small image.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")
MOST_BYTES = 512 * 2**20  # of an encoded image
MOST_PIXELS = 64_000_000  # of one, which takes half a gigabyte while it is decoded
LARGE = 8_000_000  # pixels, from which on images are decoded one at a time
MOST_SCANNED = 2_000_000_000  # pixels times scans of a JPEG: a tiny one may have thousands of empty ones
SCAN = b"\xff\xda"  # begins one
PART = 500  # images that a process decodes at a time
T = TypeVar("T")


class Encoded(Protocol):
    """A sequence of encoded images; picklable, because worker processes read it."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes:
        """The encoded bytes of one image; OSError when they cannot be had."""
        ...

    def where(self, index: int) -> str:
        """How an error message names this image: its file, and its row if the file holds many."""
        ...


def decode(source: Encoded, index: int) -> Image.Image:
    """One image as RGB. Bytes that are no image raise `CorruptImage`; bytes that cannot be had, another `UserError`."""
    return decode_and(lambda image: image, source, index, nullcontext())


def decode_and(
    use: Callable[[Image.Image], T], source: Encoded, index: int, one_at_a_time: AbstractContextManager[object]
) -> T:
    """What `use` makes of one image as RGB. Of a large one it is made within `one_at_a_time`, a lock that all processes
    share which decode at the same time: each holds hundreds of megabytes until it has made something smaller of it.
    """
    try:
        content = source.read(index)
    except OSError as error:  # a disk gone is no corrupt image, and must not be skipped like one
        raise UserError(f"{_problem(source, index, error.strerror or error)}; restore or remove it.") from error
    try:
        # Pillow's remarks about images that it reads all the same would come from each worker in each epoch
        with warnings.catch_warnings(action="ignore"):
            image = Image.open(BytesIO(content), formats=FORMATS)
            _refuse_giants(image, content)
            if image.width * image.height <= LARGE:
                return use(_rgb(image))
            with one_at_a_time:
                made = use(_rgb(image))
                del image
                give_back_memory()
                return made
    except MemoryError:  # nor is that the image's fault
        raise MemoryError(f"for the image in {source.where(index)}") from None
    except Exception as error:  # on damaged bytes Pillow's decoders raise nearly anything
        reason = "no known image format" if isinstance(error, Image.UnidentifiedImageError) else error
        raise CorruptImage(_problem(source, index, reason)) from error


def _problem(source: Encoded, index: int, reason: object) -> str:
    reason = str(reason).rstrip(".")
    return f"cannot read the image in {source.where(index)}: {reason}. Expected an intact {', '.join(FORMATS)} image"


def _refuse_giants(image: Image.Image, content: bytes) -> None:
    """Refuses giant images by the header alone: nothing is decoded yet."""
    pixels = image.width * image.height
    if pixels > MOST_PIXELS:
        most = MOST_PIXELS // 10**6
        raise ValueError(f"it has {image.width:,} x {image.height:,} pixels, and at most {most} megapixels are read")
    if image.format == "JPEG" and pixels * content.count(SCAN) > MOST_SCANNED:
        raise ValueError(f"it has {content.count(SCAN):,} scans")


def _rgb(image: Image.Image) -> Image.Image:
    """Upright; grey, palette or transparent images too; 16-bit ones scaled, where Pillow would clip them to white."""
    image.load()  # first: what is damaged must not pass for a note
    with suppress(Exception):  # notes of a camera that nobody understands
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith(("I", "F")):
        pixels = np.asarray(image)
        if pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() > 0xFFFF:
            raise ValueError("its pixels are no numbers of 8 or 16 bits")
        image = Image.fromarray((pixels >> 8).astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy it


def give_back_memory() -> None:
    """Gives memory back to the system: GNU's C library would keep all that a large image took for the next one."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def first_size(source: Encoded, corrupt: CorruptImages) -> tuple[int, int]:
    """Width and height of the first image that can be read."""
    for index in range(len(source)):
        try:
            return decode(source, index).size
        except CorruptImage as error:
            corrupt.meet(error)
    raise none_readable(source)


def decode_all(
    source: Encoded,
    size: tuple[int, int],
    corrupt: CorruptImages,
    workers: int | None = None,
    view: Callable[[Image.Image], np.ndarray] | None = None,
) -> tuple[Tensor, Tensor] | None:
    """All images as uint8 [N, 3, H, W] and the indices they had, or None once one is not of `size` (width, height).

    With a `view`, what it makes of each image, which has that size.

    Corrupt ones are left out, if that was chosen. Many images are decoded by `workers` processes (None: one a core).
    Threads were measured no faster than a plain loop: Pillow holds the interpreter's lock while it decodes.
    """
    parts = _Parts(source, size, corrupt.skip, view)
    workers = default_workers() if workers is None else workers
    worthwhile = workers > 1 and sys.platform == "linux" and len(parts) >= 4 * workers
    loader = DataLoader(
        parts,
        batch_size=None,  # an item is a part already
        num_workers=workers if worthwhile else 0,
        multiprocessing_context="fork" if worthwhile else None,  # others import torch again, which takes longer
        generator=torch.Generator(),  # else the loader would draw from torch's global one
    )
    pixels, good = [], []
    for part in loader:
        if isinstance(part, UserError):
            raise part
        if part is None:
            return None
        for error in part[2]:
            corrupt.meet(error)
        pixels.append(part[0])
        good.append(part[1])
    indices = torch.cat(good)
    if not len(indices):
        raise none_readable(source)
    return torch.cat(pixels), indices


PartOrError = tuple[Tensor, Tensor, list[CorruptImage]] | UserError | None


class _Parts(Dataset[PartOrError]):
    """All images, some hundred at a time: pixels, indices and the errors of those left out; None if a size differs.

    A worker's exception would reach the user wrapped in a traceback of the worker's, so it is returned instead.
    """

    def __init__(
        self,
        source: Encoded,
        size: tuple[int, int],
        skip: bool,
        view: Callable[[Image.Image], np.ndarray] | None,
    ) -> None:
        self.source, self.size, self.skip = source, size, skip
        self.view = view or self._if_it_fits
        self.one_at_a_time = multiprocessing.Lock()

    def __len__(self) -> int:
        return -(-len(self.source) // PART)

    def __getitem__(self, number: int) -> PartOrError:
        first = number * PART
        indices = range(first, min(first + PART, len(self.source)))
        width, height = self.size
        pixels = np.empty((len(indices), height, width, 3), np.uint8)
        good: list[int] = []
        errors: list[CorruptImage] = []
        for index in indices:
            try:
                image = decode_and(self.view, self.source, index, self.one_at_a_time)
            except CorruptImage as error:
                if not self.skip:
                    return error
                errors.append(error)
                continue
            except UserError as error:
                return error
            if image is None:
                return None
            pixels[len(good)] = image
            good.append(index)
        tensor = torch.from_numpy(pixels[: len(good)]).permute(0, 3, 1, 2).contiguous()
        return tensor, torch.tensor(good, dtype=torch.int64), errors

    def _if_it_fits(self, image: Image.Image) -> np.ndarray | None:
        return np.asarray(image) if image.size == self.size else None


def default_workers() -> int:
    """One a core this process may use; more than 8 rarely help one accelerator."""
    return min(8, usable_cores())


def none_readable(source: Encoded) -> UserError:
    """Skipping has its limits."""
    return UserError(
        f"none of the {len(source)} images beside {source.where(0)} can be read. Restore them, or see that "
        f"they are {', '.join(FORMATS)} images."
    )
