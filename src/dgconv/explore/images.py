"""The images to look at: those of the test set, and those a person brings along."""

import base64
import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from threading import Lock

import torch
from PIL import Image
from torch import Tensor

from ..data import Data, Inputs
from ..data.corrupt import CorruptImage
from ..data.decode import FORMATS, MOST_PIXELS, decode, give_back_memory
from ..data.stats import Stats
from ..errors import UserError

MAX_BYTES, MAX_PIXELS = 20_000_000, MOST_PIXELS  # of an upload
UPLOADS_HELD = 32
LOSSLESS_SIDE = 64  # larger pictures are sent as JPEG


class NoSuchImage(UserError):
    """There is no image of that name."""


class TooLarge(UserError):
    """More bytes or pixels than are accepted."""


@dataclass(frozen=True)
class Picture:
    """An image as the network sees it, normalized ``[3, height, width]``."""

    id: str
    name: str
    x: Tensor
    label: int | None = None  # of the test set's images


class Images:
    """Images by id: the number of a test image, or ``upload-1`` and so on for those that were brought along."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self._uploads: OrderedDict[str, Picture] = OrderedDict()
        self._uploaded = 0
        self._adding = Lock()
        # One for all uploads: a large one takes half a gigabyte, and what each of many threads took stays theirs.
        self._decoder = ThreadPoolExecutor(1, "decoder")

    def __getitem__(self, id: str) -> Picture:
        if id.startswith("upload-"):
            if picture := self._uploads.get(id):
                return picture
            raise NoSuchImage(f"the image {id} is not held any more (the last {UPLOADS_HELD} are): bring it again")
        return self.of_test_set(id)

    def of_test_set(self, number: str | int) -> Picture:
        split, last = self.data.test, len(self.data.test) - 1
        text = str(number)
        if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= last):
            raise NoSuchImage(f"there is no test image {text[:40]!r}; give a whole number from 0 to {last}")
        place = int(text)
        for x, label in split.batches(len(split), train=False, shard=(place, len(split))):  # it and no other
            return Picture(str(place), f"test image {place}", x[0], int(label[0]))
        raise NoSuchImage(f"test image {place} is corrupt and skipped; take another one")

    def spread(self, count: int) -> list[str]:
        """Ids of so many test images from all over the set, which may be sorted by class."""
        total = len(self.data.test)
        count = min(count, total)
        ids = []
        for place in range(count):
            with suppress(NoSuchImage):  # a corrupt one, where those are skipped
                ids.append(self.of_test_set(place * total // count).id)
        return ids

    def upload(self, content: bytes) -> Picture:
        """An image in any format we read, of nearly any size, made to fit the network's input."""
        refuse_giants(content)
        view = self._decoder.submit(self._decode, content).result()
        pixels = torch.frombuffer(bytearray(view.tobytes()), dtype=torch.uint8).view(*view.size[::-1], 3)
        x = Stats(self.data.mean, self.data.std).normalizer("cpu")(pixels.permute(2, 0, 1)[None])[0]
        with self._adding:
            self._uploaded += 1
            picture = Picture(f"upload-{self._uploaded}", "your image", x)
            self._uploads[picture.id] = picture
            if len(self._uploads) > UPLOADS_HELD:
                self._uploads.popitem(last=False)
        return picture

    def _decode(self, content: bytes) -> Image.Image:
        try:
            return Inputs.of(self.data).view(read_upload(content))
        finally:
            give_back_memory()

    def data_uri(self, picture: Picture) -> str:
        """The picture in the colours it had, for a page to show."""
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.data.mean, self.data.std))
        pixels = (picture.x.cpu() * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8)
        kind = "png" if max(pixels.shape) <= LOSSLESS_SIDE else "jpeg"
        file = BytesIO()
        Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(file, kind)
        return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


class _Upload:
    """One image, for :func:`decode`, which knows about grey, transparent and 16-bit ones."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __len__(self) -> int:
        return 1

    def read(self, index: int) -> bytes:
        return self.content

    def where(self, index: int) -> str:
        return "your file"


def read_upload(content: bytes) -> Image.Image:
    """Reads an image as RGB, upright."""
    refuse_giants(content)
    try:
        return decode(_Upload(content), 0)
    except CorruptImage as error:
        raise UserError(f"{error.problem}.") from error


def refuse_giants(content: bytes) -> None:
    """Reads the size of an image from its header, before a pixel of it is decoded."""
    if len(content) > MAX_BYTES:
        raise TooLarge(f"your file has {len(content):,} bytes; at most {MAX_BYTES:,} are accepted. Make it smaller")
    limit = f"at most {MAX_PIXELS // 10**6} megapixels are accepted. Make it smaller"
    try:
        with warnings.catch_warnings(action="ignore"):  # our own limit is stricter than Pillow's
            width, height = Image.open(BytesIO(content), formats=FORMATS).size
    except Image.DecompressionBombError as error:
        raise TooLarge(f"your image has far too many pixels; {limit}") from error
    except Exception:  # not an image, or a damaged one: decoding it says what is wrong
        return
    if width * height > MAX_PIXELS:
        raise TooLarge(f"your image has {width:,} x {height:,} pixels; {limit}")
