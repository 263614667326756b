"""How an image of any size becomes the input of a network, and what its answers are called."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from PIL import Image, ImageOps
from PIL.Image import Resampling

from ..errors import UserError
from ..files import read_whole
from ..values import LONGEST_JSON, load_json, read_values
from .base import RGB, Data
from .crops import central_view
from .encoded_split import EncodedSplit
from .stats import Stats

FILE = "inputs.json"
MOST_SIDE = 2**14


@dataclass(frozen=True)
class Inputs:
    """What a data set does to its test images; kept beside a trained network, for images that come later."""

    input_size: tuple[int, int, int]  # channels, height, width
    mean: RGB
    std: RGB
    classes: list[str]
    loses_margin: bool = True  # photographs do; small images that are held in memory, such as CIFAR's, are used whole

    @classmethod
    def of(cls, data: Data) -> Self:
        return cls(data.input_size, data.mean, data.std, data.classes, isinstance(data.test, EncodedSplit))

    @classmethod
    def read(cls, file: Path) -> Self:
        try:
            return cls.from_values(load_json(read_whole(file, LONGEST_JSON)), str(file))
        except (OSError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{file} cannot be read: {error}. Export the network again") from None

    @classmethod
    def from_values(cls, values: Any, source: str) -> Self:
        inputs = read_values(cls, values, source, ignore_unknown=True)
        channels, *sides = inputs.input_size
        if channels != 3 or not all(1 <= side <= MOST_SIDE for side in sides):
            raise UserError(f"{source}: input_size must be 3 and two sides from 1 to {MOST_SIDE}")
        if not all(part > 0 for part in inputs.std):
            raise UserError(f"{source}: std must be above 0")
        return inputs

    def to_bytes(self) -> bytes:
        return (json.dumps(asdict(self), indent=2) + "\n").encode()

    @property
    def of_images(self) -> dict[str, Any]:
        """What of it the config of a run has beside its classes and its input size."""
        return {"mean": self.mean, "std": self.std, "loses_margin": self.loses_margin}

    @property
    def stats(self) -> Stats:
        return Stats(self.mean, self.std)

    def view(self, image: Image.Image) -> Image.Image:
        """Scaled and cut to the input of the network."""
        _, height, width = self.input_size
        if self.loses_margin and height == width:
            return central_view(image, height)
        return ImageOps.fit(image, (width, height), Resampling.BILINEAR)
