"""The embedded digits."""

import pytest
import torch
from sklearn.datasets import load_digits as originals

from dgconv.data import load_data
from dgconv.errors import UserError


def test_the_split_is_every_fifth_image():
    data = load_data("digits")
    target = torch.from_numpy(originals().target)
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert torch.equal(data.test.labels, target[::5])
    assert torch.equal(data.train.labels, target[torch.arange(1797) % 5 != 0])


def test_images_are_the_originals_enlarged():
    images = load_data("digits").test.images
    assert images.shape == (360, 3, 32, 32)
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])
    shrunk = torch.nn.functional.avg_pool2d(images[:, 0].double(), 4) * 16 / 255
    wanted = torch.from_numpy(originals().images[::5])
    together = torch.stack([shrunk.flatten(), wanted.flatten()])
    assert torch.corrcoef(together)[0, 1] > 0.97
    assert images.max() == 255
    assert images.unique().numel() > 100  # smooth: more than the 17 original values


def test_describes_itself():
    data = load_data("digits")
    assert data.name == "digits"
    assert data.classes == list("0123456789")
    assert data.input_size == (3, 32, 32)
    images, _ = next(data.train.batches(1437, train=False))
    torch.testing.assert_close(images.mean(), torch.tensor(0.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(images.std(), torch.tensor(1.0), atol=1e-3, rtol=0)


def test_shifts_by_two_at_most_and_never_mirrors():
    train = load_data("digits").train
    assert (train.pad, train.flip) == (2, False)


def test_another_size():
    data = load_data("digits", image_size=48)
    images, _ = next(data.test.batches(2, train=False))
    assert data.input_size == (3, 48, 48) == images.shape[1:]
    assert data.train.pad == 3


def test_takes_no_folder(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path}: the digits are embedded. Leave .* it is for cifar10,"):
        load_data("digits", tmp_path)
