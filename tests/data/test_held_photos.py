"""Photos that are kept in memory: the same images for tests, random parts for training."""

import numpy as np
import pytest
import torch
from PIL import Image

from dgconv.data.crops import central_view
from dgconv.data.held_photos import HeldPhotos, crop, random_boxes
from dgconv.data.stats import IMAGENET
from dgconv.train.tables import DataTable


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 3)):
        for name in ("cat", "dog"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 255, (40, 56, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((112, 80)).save(folder / f"{number}.png")
    return tmp_path


def load(folder, **settings):
    return DataTable("folder", str(folder), image_size=32, **settings).load()


def test_test_images_are_those_that_are_streamed(photos):
    held, streamed = load(photos, in_memory=True), load(photos, workers=0)
    for (a, labels), (b, others) in zip(
        held.test.batches(4, train=False), streamed.test.batches(4, train=False), strict=True
    ):
        assert torch.equal(a, b)
        assert torch.equal(labels, others)
    assert held.input_size == streamed.input_size


def test_training_images_are_parts_and_repeat_with_their_seed(photos):
    held = load(photos, in_memory=True, smallest_crop=0.5)
    assert isinstance(held.train, HeldPhotos)
    assert held.train.images.shape == (12, 3, 40, 40)

    def epoch(seed):
        return torch.cat(
            [x for x, _ in held.train.batches(4, train=True, generator=torch.Generator().manual_seed(seed))]
        )

    assert torch.equal(epoch(1), epoch(1))
    assert not torch.equal(epoch(1), epoch(2))
    assert epoch(1).shape == (12, 3, 32, 32)
    rest = list(held.train.batches(4, train=True, generator=torch.Generator().manual_seed(1), start=2))
    assert torch.equal(rest[0][0], epoch(1)[8:])


def test_a_crop_of_all_is_the_image_and_one_of_a_quarter_its_corner():
    image = torch.arange(64.0).view(1, 1, 8, 8)
    everything, corner = torch.tensor([[0.0, 0, 1, 1]]), torch.tensor([[0.5, 0, 1, 0.5]])
    torch.testing.assert_close(crop(image, everything, 8), image)
    torch.testing.assert_close(crop(image, corner, 4), image[:, :, :4, 4:])


def test_boxes_lie_within_and_have_their_share():
    torch.manual_seed(0)
    boxes = random_boxes(torch.rand(10, 500), torch.rand(10, 500), torch.rand(500), torch.rand(500), 0.35)
    left, upper, right, lower = boxes.unbind(1)
    area = (right - left) * (lower - upper)
    assert boxes.min() >= 0
    assert boxes.max() <= 1 + 1e-6
    assert area.min() >= 0.35 - 1e-4
    assert area.std() > 0.1


def test_the_middle_is_the_usual_one(photos):
    held = load(photos, in_memory=True)
    image = Image.open(photos / "test" / "cat" / "0.png")
    middle = torch.from_numpy(np.asarray(central_view(image, 32)).copy()).permute(2, 0, 1)[None]
    torch.testing.assert_close(next(held.test.batches(1, train=False))[0], IMAGENET.normalizer("cpu")(middle))
