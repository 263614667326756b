"""Images that people bring along, good ones and bad ones."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from dgconv.data import Inputs
from dgconv.data.crops import central_view
from dgconv.data.encoded_split import EncodedSplit
from dgconv.data.stats import Stats
from dgconv.errors import UserError
from dgconv.explore import images as images_module
from dgconv.explore.images import MAX_BYTES, Images, NoSuchImage, TooLarge


@pytest.fixture
def images(head_session):
    return Images(head_session.data)


@pytest.fixture
def photos(head_session):
    """The same data set as if its images were photographs on disk."""
    data = head_session.data
    split = EncodedSplit([], torch.arange(0), Stats(data.mean, data.std), image_size=16, workers=0)
    return replace(data, test=split)


def png_of(width, height):
    """A PNG file of this size by its header, with hardly a pixel in it."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\1\2\3"))


def pixels_of(images, picture):
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (images.data.mean, images.data.std))
    return ((picture.x * std + mean) * 255).round().to(torch.uint8)


def test_a_test_image_as_a_file_is_that_image(images, encoded):
    file = encoded(Image.fromarray(images.data.test.images[7].permute(1, 2, 0).numpy()))
    torch.testing.assert_close(images.upload(file).x, images["7"].x)
    assert images["7"].label == int(images.data.test.labels[7])
    assert images["7"].name == "test image 7"


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_any_colours(images, encoded, a_photo, mode):
    file = encoded(a_photo.convert("RGB").convert(mode), "TIFF" if mode == "CMYK" else "PNG")
    found = pixels_of(images, images.upload(file)).float()
    expected = torch.from_numpy(np.array(Inputs.of(images.data).view(a_photo))).permute(2, 0, 1).float()
    assert (found - expected).abs().mean() < (40 if mode in "1P" else 2), "dithered a little, or the same"


def test_sixteen_bits(images, encoded, a_photo):
    deep = Image.fromarray(np.asarray(a_photo.convert("L")).astype(np.uint16) * 257)
    found = pixels_of(images, images.upload(encoded(deep))).float()
    same = pixels_of(images, images.upload(encoded(a_photo))).float()
    assert (found - same).abs().max() <= 1
    assert same.max() - same.min() > 50


def test_turned_as_the_camera_says(images, encoded, a_photo):
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    upright, turned = images.upload(encoded(a_photo, "JPEG")), images.upload(encoded(a_photo, "JPEG", exif=exif))
    torch.testing.assert_close(turned.x, upright.x.flip(1, 2), atol=0.1, rtol=0)
    assert (turned.x - upright.x).abs().max() > 0.5


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (16, 16), (17, 333), (2000, 1500)])
@pytest.mark.parametrize("kind", ["whole", "photos"])
def test_any_size(images, photos, encoded, size, kind):
    images.data = photos if kind == "photos" else images.data
    picture = images.upload(encoded(Image.new("RGB", size, (200, 100, 50))))
    assert picture.x.shape == (3, 16, 16)
    assert pixels_of(images, picture).float().mean((1, 2)).tolist() == pytest.approx([200, 100, 50], abs=1)


def test_photographs_are_cut_as_the_data_set_cuts_them(photos, a_photo):
    assert Inputs.of(photos).view(a_photo).tobytes() == central_view(a_photo, 16).tobytes()


def test_no_image(images):
    with pytest.raises(UserError, match=r"no known image format\. Expected an intact JPEG"):
        images.upload(b"hello, this is a text")
    with pytest.raises(UserError, match="cannot read the image in your file"):
        images.upload(b"")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP"])
def test_half_an_image(images, encoded, a_photo, format):
    file = encoded(a_photo, format)
    with pytest.raises(UserError, match="cannot read the image in your file") as refused:
        images.upload(file[: len(file) // 2])
    assert "--skip-corrupt-images" not in str(refused.value)


@pytest.mark.parametrize("size", [(10_000, 10_000), (14_000, 13_000), (60_000, 60_000)])
def test_giants_are_refused_by_their_header(images, size, monkeypatch, recwarn):
    monkeypatch.setattr(images_module, "decode", lambda *_: pytest.fail("decoded"))
    with pytest.raises(TooLarge, match="at most 64 megapixels"):
        images.upload(png_of(*size))
    assert not recwarn.list


def test_too_many_bytes(images):
    with pytest.raises(TooLarge, match=f"{MAX_BYTES + 1:,} bytes"):
        images.upload(bytes(MAX_BYTES + 1))


def test_the_last_uploads_are_held(images, encoded, monkeypatch):
    monkeypatch.setattr(images_module, "UPLOADS_HELD", 2)
    first, second, third = (images.upload(encoded(Image.new("RGB", (16, 16), (n, n, n)))) for n in (0, 90, 180))
    assert images[second.id] is second
    assert images[third.id] is third
    with pytest.raises(NoSuchImage, match="not held any more"):
        images[first.id]


@pytest.mark.parametrize("number", ["360", "-1", "1.5", "", "x", "²", "9" * 400])
def test_no_such_test_image(images, number):
    with pytest.raises(NoSuchImage, match="from 0 to 359"):
        images[number]


def test_a_choice_from_all_over_the_test_set(images):
    assert images.spread(4) == ["0", "90", "180", "270"]
    assert images.spread(1000) == [str(number) for number in range(360)]
