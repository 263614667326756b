"""Encoded images, wherever they are stored, and decoding them with Pillow."""

from io import BytesIO
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import UserError
from .corrupt import CorruptImage, CorruptImages

# Named, and most frequent first, because trying every format Pillow knows takes longer than a small image.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF")


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
    try:
        content = source.read(index)
    except OSError as error:  # a disk gone is no corrupt image, and must not be skipped like one
        raise UserError(f"{_problem(source, index, error)}; restore or remove it.") from error
    try:
        return _rgb(Image.open(BytesIO(content), formats=FORMATS))
    except Exception as error:  # on damaged bytes Pillow's decoders raise nearly anything
        reason = "no known image format" if isinstance(error, Image.UnidentifiedImageError) else error
        raise CorruptImage(_problem(source, index, reason)) from error


def _problem(source: Encoded, index: int, reason: object) -> str:
    return f"cannot read the image in {source.where(index)}: {reason}. Expected an intact {', '.join(FORMATS)} image"


def _rgb(image: Image.Image) -> Image.Image:
    """Grey, palette or transparent images too; 16-bit ones scaled, where Pillow would clip them to white."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def first_size(source: Encoded, corrupt: CorruptImages) -> tuple[int, int]:
    """Width and height of the first image that can be read."""
    for index in range(len(source)):
        try:
            return decode(source, index).size
        except CorruptImage as error:
            corrupt.meet(error)
    raise none_readable(source)


def decode_all(source: Encoded, size: tuple[int, int], corrupt: CorruptImages) -> tuple[Tensor, Tensor] | None:
    """All images as uint8 [N, 3, H, W] and the indices they had, or None once one is not of `size` (width, height).

    Corrupt ones are left out, if that was chosen. A plain loop: Pillow holds the interpreter's lock while it
    decodes, and threads were measured no faster.
    """
    width, height = size
    pixels = np.empty((len(source), height, width, 3), np.uint8)
    good: list[int] = []
    for index in range(len(source)):
        try:
            image = decode(source, index)
        except CorruptImage as error:
            corrupt.meet(error)
            continue
        if image.size != size:
            return None
        pixels[len(good)] = np.asarray(image)
        good.append(index)
    if not good:
        raise none_readable(source)
    return torch.from_numpy(pixels[: len(good)]).permute(0, 3, 1, 2).contiguous(), torch.tensor(good)


def none_readable(source: Encoded) -> UserError:
    """Skipping has its limits."""
    return UserError(
        f"none of the {len(source)} images beside {source.where(0)} can be read. Restore them, or see that "
        f"they are {', '.join(FORMATS)} images."
    )
