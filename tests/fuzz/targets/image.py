"""Images of all formats that are read, in a data set or brought along to the explorer."""

import struct
import zlib
from contextlib import suppress
from functools import cache
from io import BytesIO
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from dgconv.data.corrupt import CorruptImage
from dgconv.data.decode import FORMATS, decode
from dgconv.errors import UserError
from dgconv.explore.images import read_upload
from tests.fuzz.damage import damage
from tests.fuzz.outcome import Wrong
from tests.fuzz.values import NUMBERS

MODES = ("RGB", "L", "P", "1", "RGBA", "CMYK", "LA", "F", "I")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"progressive": True}, {"compression": "tiff_lzw"}, {"lossless": True})
CHUNKS = (b"IHDR", b"IDAT", b"PLTE", b"tRNS", b"iCCP", b"zTXt", b"eXIf", b"acTL", b"fdAT", b"IEND")
WORDS = (
    *CHUNKS,
    *(b"\xff\xd8\xff", b"\xff\xda", b"\xff\xc0", b"\xff\xc2", b"\xff\xc4", b"\xff\xdb", b"\xff\xe1", b"Exif\0\0"),
    *(
        b"RIFF",
        b"WEBP",
        b"VP8 ",
        b"VP8L",
        b"VP8X",
        b"ANIM",
        b"ANMF",
        b"BM",
        b"P6",
        b"P7",
        b"GIF89a",
        b"II*\0",
        b"MM\0*",
    ),
)


@cache
def _images() -> list[bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8)
    found = []
    for format in FORMATS:
        for mode in MODES:
            for options in OPTIONS:
                file = BytesIO()
                try:
                    Image.fromarray(pixels).convert(mode).save(file, format, **options)
                except (OSError, ValueError, KeyError):  # the format has no such mode
                    continue
                found.append(file.getvalue())
    return list(dict.fromkeys(found))


def make(rng: Random) -> bytes:
    content = rng.choice(_images())
    if content[1:4] == b"PNG" and rng.random() < 0.8:
        return _change_chunks(content, rng)
    return damage(content, rng, WORDS)


def _change_chunks(png: bytes, rng: Random) -> bytes:
    """Of a PNG, with checksums that are right: else these tell of most changes."""
    chunks, place = [], 8
    while place < len(png):
        (length,) = struct.unpack_from(">I", png, place)
        chunks.append((png[place + 4 : place + 8], png[place + 8 : place + 8 + length]))
        place += 12 + length
    for _ in range(rng.choice((1, 1, 2, 3))):
        index = rng.randrange(len(chunks))
        kind, data = chunks[index]
        match rng.randrange(7):
            case 0:
                chunks.insert(rng.randrange(len(chunks)), chunks[index])
            case 1 if len(chunks) > 1:
                chunks.pop(index)
            case 2:
                chunks[index] = rng.choice(CHUNKS), data
            case 3 | 4 if kind == b"IHDR":
                place, size = rng.choice((0, 4)), rng.choice(NUMBERS) % 2**32
                chunks[index] = kind, data[:place] + struct.pack(">I", size) + data[place + 4 :]
            case 4 | 5 if kind == b"IDAT":
                with suppress(zlib.error):  # it was damaged before
                    pixels = zlib.decompress(data)[: 1 << 16] * rng.choice((1, 1, 2, 100))
                    chunks[index] = kind, zlib.compress(damage(pixels, rng))
            case _:
                chunks[index] = kind, damage(data, rng)
    return png[:8] + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


class _One:
    """An image as a data set has it."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __len__(self) -> int:
        return 1

    def read(self, index: int) -> bytes:
        return self.content

    def where(self, index: int) -> str:
        return "a file"


def run(content: bytes) -> str:
    image = upload = None
    with suppress(CorruptImage):
        image = decode(_One(content), 0)
    with suppress(UserError):
        upload = read_upload(content)
    if (image is None) != (upload is None):
        raise Wrong("a data set and the explorer do not agree on whether it can be read")
    if image is None:
        return "refused"
    if image.mode != "RGB" or not image.width or not image.height:
        raise Wrong(f"it was read as {image}")
    return "accepted"


def store(content: bytes) -> bytes:
    return content


restore = store
