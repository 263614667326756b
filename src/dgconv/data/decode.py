"""Encoded images, wherever they are stored, and decoding them with Pillow."""

from io import BytesIO
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import UserError

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
    """One image as RGB."""
    try:
        return _rgb(Image.open(BytesIO(source.read(index)), formats=FORMATS))
    except Exception as error:  # on damaged bytes Pillow's decoders raise nearly anything
        reason = "no known image format" if isinstance(error, Image.UnidentifiedImageError) else error
        raise UserError(
            f"cannot read the image in {source.where(index)}: {reason}. "
            f"Expected an intact {', '.join(FORMATS)} image; restore or remove it."
        ) from error


def _rgb(image: Image.Image) -> Image.Image:
    """Grey, palette or transparent images too; 16-bit ones scaled, where Pillow would clip them to white."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


def decode_all(source: Encoded, size: tuple[int, int]) -> Tensor | None:
    """All images as uint8 [N, 3, H, W], or None as soon as one is not of `size` (width, height).

    A plain loop: Pillow holds the interpreter's lock while it decodes, and threads were measured no faster.
    """
    width, height = size
    pixels = np.empty((len(source), height, width, 3), np.uint8)
    for index in range(len(source)):
        image = decode(source, index)
        if image.size != size:
            return None
        pixels[index] = np.asarray(image)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
