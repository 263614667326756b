"""The crops of large images: ImageNet's usual ones, as torchvision defines them."""

import numpy as np
import pytest
from PIL import Image

from dgconv.data.crops import central_view, random_box, random_view


def picture(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("shape", "size", "scaled", "corner"),
    [
        ((300, 200), 32, (55, 37), (12, 2)),  # halves are rounded to even
        ((200, 300), 32, (37, 55), (2, 12)),
        ((57, 91), 97, (111, 177), (7, 40)),
        ((40, 40), 97, (111, 111), (7, 7)),
        ((500, 375), 224, (341, 256), (58, 16)),
    ],
)
def test_central_view_is_the_middle_of_the_scaled_image(shape, size, scaled, corner):
    image = picture(*shape)
    whole = np.asarray(image.resize(scaled, Image.Resampling.BILINEAR))
    left, upper = corner
    assert np.array_equal(central_view(image, size), whole[upper : upper + size, left : left + size])


def test_a_line_of_pixels_is_cut_before_it_is_scaled(monkeypatch):
    """Else it would become a thousand times as many."""
    image = picture(900, 60)
    whole = np.asarray(image.resize((270, 18), Image.Resampling.BILINEAR))
    assert np.array_equal(central_view(image, 16), whole[1:17, 127:143]), "the middle, whatever is cut off first"
    sizes, resize = [], Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda image, size, *how: sizes.append(size) or resize(image, size, *how)
    )
    central_view(Image.new("RGB", (50_000, 2)), 16)
    central_view(Image.new("RGB", (3, 50_000)), 16)
    assert sizes == [(72, 18), (18, 72)]


@pytest.mark.parametrize("shape", [(300, 200), (57, 91), (40, 40)])
def test_random_view_is_the_box_scaled_and_mirrored_half_the_time(shape):
    image, mirrored = picture(*shape), 0
    pixels = np.asarray(image)
    for seed in range(200):
        left, upper, right, lower = random_box(*image.size, np.random.default_rng(seed))
        part = Image.fromarray(pixels[upper:lower, left:right])
        plain = np.asarray(part.resize((16, 16), Image.Resampling.BILINEAR))
        view = np.asarray(random_view(image, 16, np.random.default_rng(seed)))
        if not np.array_equal(view, plain):
            assert np.array_equal(view, plain[:, ::-1])
            mirrored += 1
    assert 70 < mirrored < 130  # 100 ± 4 standard deviations


def test_random_boxes_fill_the_allowed_range():
    width, height = 400, 400
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(width, height, rng) for _ in range(3000)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = w * h / (width * height), w / h
    assert boxes.min() == 0
    assert boxes.max() == 400
    assert 0.079 < area.min() < 0.09
    assert 0.95 < area.max() <= 1
    assert 0.74 < ratio.min() < 0.76
    assert 1.32 < ratio.max() < 1.35
    assert abs(np.log(ratio).mean()) < 0.02  # tall as often as wide
    centre = (boxes[:, 0] + boxes[:, 2]) / 2
    assert abs(centre.mean() - 200) < 5


@pytest.mark.parametrize(
    ("shape", "box"),
    [((1000, 10), (494, 0, 507, 10)), ((10, 1000), (0, 494, 10, 507)), ((1, 1), (0, 0, 1, 1))],
)
def test_the_central_box_when_none_drawn_fits(shape, box):
    assert random_box(*shape, np.random.default_rng(0)) == box


def test_boxes_of_tiny_images_hold_some_pixels_and_at_times_all():
    for width, height in ((1, 1), (2, 3), (3, 2)):
        boxes = {random_box(width, height, np.random.default_rng(seed)) for seed in range(100)}
        assert all(0 <= left < right <= width and 0 <= upper < lower <= height for left, upper, right, lower in boxes)
        assert (0, 0, width, height) in boxes
