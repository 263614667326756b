"""Decoding whatever kind of image a data set holds into RGB."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from dgconv.data.corrupt import CorruptImage, CorruptImages
from dgconv.data.decode import FORMATS, decode, decode_all, decode_and, default_workers
from dgconv.errors import UserError


class Memory:
    """Encoded images in a list."""

    def __init__(self, *images: bytes) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> bytes:
        return self.images[index]

    def where(self, index: int) -> str:
        return f"image {index}"


def saved(image: Image.Image, format: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("format", FORMATS)
def test_every_format(format):
    pixels = np.full((5, 7, 3), (250, 120, 10), np.uint8)
    image = decode(Memory(saved(Image.fromarray(pixels), format)), 0)
    assert image.mode == "RGB"
    np.testing.assert_allclose(np.asarray(image).astype(int), pixels, atol=4)


def test_lossless_webp_is_exact(noise):
    (pixels,) = noise(1)
    assert np.array_equal(decode(Memory(saved(Image.fromarray(pixels), "WEBP", lossless=True)), 0), pixels)


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (np.full((2, 2), 77, np.uint8), (77, 77, 77)),
        (np.full((2, 2), 77 * 256 + 13, np.uint16), (77, 77, 77)),
        (np.full((2, 2, 2), (77, 128), np.uint8), (77, 77, 77)),
        (np.full((2, 2, 4), (1, 2, 3, 128), np.uint8), (1, 2, 3)),
    ],
    ids=["grey", "grey 16 bit", "grey and alpha", "rgba"],
)
def test_other_kinds_of_pixel_become_rgb(pixels, expected):
    assert np.asarray(decode(Memory(saved(Image.fromarray(pixels))), 0))[0, 0].tolist() == list(expected)


@pytest.mark.parametrize("pixel", [0.5, -1, 0x10000], ids=["float", "below 0", "above 16 bit"])
def test_pixels_of_no_known_range_are_refused(pixel):
    """They would become black, or anything."""
    image = Image.fromarray(np.full((2, 2), pixel, np.float32 if pixel == 0.5 else np.int32))
    with pytest.raises(UserError, match="image 0: its pixels are no numbers of 8 or 16 bits"):
        decode(Memory(saved(image, "TIFF")), 0)


def test_a_palette_becomes_rgb():
    image = Image.new("RGB", (3, 3), (200, 0, 40)).convert("P", palette=Image.Palette.ADAPTIVE)
    assert np.asarray(decode(Memory(saved(image)), 0))[1, 1].tolist() == [200, 0, 40]


def test_what_pillow_remarks_about_a_readable_image_is_not_repeated():
    """Each worker would print it in each epoch."""
    image = Image.new("RGB", (3, 3), (200, 0, 40)).quantize(2)
    content = saved(image, transparency=bytes([255, 0]))
    with warnings.catch_warnings(action="error"):
        assert np.asarray(decode(Memory(content), 0))[1, 1].tolist() == [200, 0, 40]


def test_a_lack_of_memory_is_no_corrupt_image(monkeypatch):
    """Which could be skipped."""

    def full(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(Image, "open", full)
    with pytest.raises(MemoryError, match="for the image in image 0"):
        decode(Memory(b""), 0)


def test_decodes_all_in_order(noise, encode):
    images = noise(5, height=4, width=6)
    decoded = decode_all(Memory(*map(encode, images)), (6, 4), CorruptImages())
    assert decoded is not None
    tensor, rows = decoded
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(tensor.permute(0, 2, 3, 1), np.stack(images))
    assert tensor.is_contiguous()


def test_decodes_none_when_a_size_differs(noise, encode):
    images = [*noise(3), *noise(1, height=9)]
    assert decode_all(Memory(*map(encode, images)), (8, 8), CorruptImages()) is None


@pytest.mark.parametrize("damage", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n????", b"\xff\xd8\xff", b"RIFF0000WEBPVP8L"])
def test_damaged_bytes_are_named(damage):
    with pytest.raises(UserError, match=r"cannot read the image in image 1: .*remove it"):
        decode(Memory(b"", damage), 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_many_are_decoded_by_processes(workers, noise, encode, monkeypatch):
    """The same images, errors and refusals in the same order as by one process."""
    monkeypatch.setattr("dgconv.data.decode.PART", 2)
    images = noise(17)
    encoded = list(map(encode, images))
    before = torch.get_rng_state()
    tensor, rows = decode_all(Memory(*encoded), (8, 8), CorruptImages(), workers)
    assert torch.equal(torch.get_rng_state(), before), "torch's global generator is left alone"
    assert rows.tolist() == list(range(17))
    assert np.array_equal(tensor.permute(0, 2, 3, 1), np.stack(images))

    encoded[5] = encoded[11] = b"damaged"
    with pytest.raises(UserError, match="image 5"):
        decode_all(Memory(*encoded), (8, 8), CorruptImages(), workers)
    corrupt = CorruptImages(skip=True)
    tensor, rows = decode_all(Memory(*encoded), (8, 8), corrupt, workers)
    assert rows.tolist() == [n for n in range(17) if n not in (5, 11)]
    assert np.array_equal(tensor[5].permute(1, 2, 0), images[6])
    assert len(corrupt.named) == 2
    assert decode_all(Memory(*encoded, encode(noise(1, height=9)[0])), (8, 8), corrupt, workers) is None


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (3, 3), (64, 8)])
def test_one_worker_a_core_and_eight_at_most(cores, workers, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert default_workers() == workers


def test_an_image_of_far_too_many_pixels():
    for size in ((65_000, 1_000), (13_400, 13_350)):
        content = png_header(*size)
        with pytest.raises(CorruptImage, match=r"it has [\d,]+ x [\d,]+ pixels, and at most 64 megapixels are read"):
            decode(Memory(content), 0)


def png_header(width, height):
    """An image of this size, of which no pixel is there."""
    chunks = (b"IHDR" + struct.pack(">II5B", width, height, 8, 2, 0, 0, 0), b"IDAT", b"IEND")
    parts = [struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_a_jpeg_with_thousands_of_scans():
    content = saved(Image.new("RGB", (2000, 2000)), "JPEG")
    first = content.index(b"\xff\xda")
    with pytest.raises(CorruptImage, match="it has 1,001 scans"):
        decode(Memory(content[:first] + content[first : first + 14] * 1000 + content[first:]), 0)
    assert decode(Memory(content), 0).size == (2000, 2000)


def test_large_images_are_decoded_one_at_a_time(monkeypatch):
    held = []

    class Lock:
        def __enter__(self):
            held.append(True)

        def __exit__(self, *error):
            held.append(False)

    monkeypatch.setattr("dgconv.data.decode.LARGE", 100)
    images = Memory(*[saved(Image.new("RGB", size)) for size in ((10, 10), (10, 11))])
    decode_and(lambda image: held.append(image.size), images, 0, Lock())
    assert held == [(10, 10)]
    decode_and(lambda image: held.append(image.size), images, 1, Lock())
    assert held == [(10, 10), True, (10, 11), False]
    assert decode(images, 1).getpixel((0, 0)) == (0, 0, 0), "what is returned can be used"
