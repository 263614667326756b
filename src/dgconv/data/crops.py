"""How a photograph of any size becomes a square input: ImageNet's usual crops, on Pillow images."""

import math

import numpy as np
from PIL import Image
from PIL.Image import Resampling, Transpose

SMALLEST = 0.08  # share of the image that a training crop covers at least
RATIO = (3 / 4, 4 / 3)  # of its width to its height
TRIES = 10
LONGEST = 4  # times the shorter side: what is further out never comes into the middle

Box = tuple[int, int, int, int]  # left, upper, right, lower


def random_box(width: int, height: int, rng: np.random.Generator, smallest: float = SMALLEST) -> Box:
    """A random part of the image; the largest central one allowed when none drawn fits."""
    for _ in range(TRIES):
        area = width * height * rng.uniform(smallest, 1.0)
        ratio = math.exp(rng.uniform(*np.log(RATIO)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, upper, left + w, upper + h
    return central_box(width, height, min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3)))


def central_box(width: int, height: int, w: int, h: int) -> Box:
    """The w x h box in the middle of a width x height image."""
    left, upper = round((width - w) / 2), round((height - h) / 2)
    return left, upper, left + w, upper + h


def random_view(image: Image.Image, size: int, rng: np.random.Generator, smallest: float = SMALLEST) -> Image.Image:
    """A random part of the image, mirrored half of the time.

    Cut out before it is scaled: `resize(box=...)` would let pixels outside of the box bleed in.
    """
    view = image.crop(random_box(*image.size, rng, smallest)).resize((size, size), Resampling.BILINEAR)
    return view.transpose(Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else view


def central_view(image: Image.Image, size: int) -> Image.Image:
    """The middle of the image, after its shorter side became 256 pixels for an input of 224."""
    longest = LONGEST * min(image.size)  # a line of pixels would become huge when scaled
    if max(image.size) > longest:
        image = image.crop(central_box(*image.size, min(image.width, longest), min(image.height, longest)))
    short = round(size * 256 / 224)
    scaled_size = [short * side // min(image.size) for side in image.size]
    scaled = image.resize((scaled_size[0], scaled_size[1]), Resampling.BILINEAR)
    return scaled.crop(central_box(*scaled.size, size, size))
