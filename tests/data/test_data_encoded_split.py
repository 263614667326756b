"""The streamed split: the same batches whatever the number of workers, and clean errors."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from dgconv.data import EncodedSplit, Stats
from dgconv.data.crops import central_view
from dgconv.data.folder import Files
from dgconv.errors import UserError

RAW = Stats((0.0, 0.0, 0.0), (1 / 255,) * 3)
COUNT, SIZE = 11, 16


@pytest.fixture
def files(tmp_path, write_images):
    names = [f"{number:02d}.png" for number in range(COUNT)]
    write_images(tmp_path, *names)
    return [tmp_path / name for name in names]


def split_of(files, workers=0) -> EncodedSplit:
    return EncodedSplit(Files(files), torch.arange(COUNT), RAW, image_size=SIZE, workers=workers)


def epoch(split, *, train, seed=0, batch_size=4):
    generator = torch.Generator().manual_seed(seed)
    images, labels = zip(*split.batches(batch_size, train=train, generator=generator), strict=True)
    return torch.cat(images), torch.cat(labels), [len(batch) for batch in labels]


def test_evaluation_visits_every_image_once_in_order(files):
    images, labels, sizes = epoch(split_of(files), train=False)
    assert sizes == [4, 4, 3]
    assert labels.tolist() == list(range(COUNT))
    assert images.shape == (COUNT, 3, SIZE, SIZE)
    assert images.dtype == torch.float32
    for file, image in zip(files, images, strict=True):
        expected = np.asarray(central_view(Image.open(file), SIZE))
        np.testing.assert_allclose(image.permute(1, 2, 0), expected, atol=1e-3)


def test_training_shuffles_crops_and_drops_the_last_incomplete_batch(files):
    split = split_of(files)
    images, labels, sizes = epoch(split, train=True)
    assert sizes == [4, 4]
    assert len(set(labels.tolist())) == 8
    assert labels.tolist() != sorted(labels.tolist())
    untouched, _, _ = epoch(split, train=False)
    assert not any(torch.equal(image, untouched[label]) for image, label in zip(images, labels, strict=True))


def test_a_split_smaller_than_a_batch_is_one_short_batch(files):
    assert epoch(split_of(files), train=True, batch_size=100)[2] == [COUNT]


@pytest.mark.parametrize("train", [True, False])
def test_the_number_of_workers_changes_nothing(files, train):
    images, labels, _ = epoch(split_of(files, workers=0), train=train)
    other_images, other_labels, _ = epoch(split_of(files, workers=2), train=train)
    assert torch.equal(labels, other_labels)
    assert torch.equal(images, other_images)


def test_the_generator_alone_decides(files):
    split = split_of(files)
    images, labels, _ = epoch(split, train=True, seed=3)
    torch.manual_seed(99)
    np.random.seed(99)
    again, _, _ = epoch(split, train=True, seed=3)
    assert torch.equal(images, again)
    assert epoch(split, train=True, seed=4)[1].tolist() != labels.tolist()


def test_each_epoch_draws_new_crops(files):
    split, generator = split_of(files), torch.Generator().manual_seed(0)
    first, second = (
        dict(zip(labels.tolist(), images, strict=True))
        for _ in range(2)
        for images, labels in split.batches(COUNT, train=True, generator=generator)
    )
    assert not any(torch.equal(first[number], second[number]) for number in range(COUNT))


def test_two_copies_of_an_image_get_their_own_crops(files):
    split = EncodedSplit(Files([files[0]] * 8), torch.arange(8), RAW, image_size=SIZE, workers=0)
    ((images, _),) = split.batches(8, train=True, generator=torch.Generator().manual_seed(0))
    assert len(images.unique(dim=0)) == 8


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_global_generator_is_left_alone(files, workers):
    before = torch.get_rng_state()
    epoch(split_of(files, workers), train=True)
    epoch(split_of(files, workers), train=False)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("damage", ["truncated", "text", "gone"])
def test_a_corrupt_image_is_named_without_a_workers_traceback(files, workers, damage):
    bad = files[6]
    if damage == "truncated":
        bad.write_bytes(bad.read_bytes()[:300])
    elif damage == "text":
        bad.write_text("not an image")
    else:
        bad.unlink()
    with pytest.raises(UserError) as caught:
        epoch(split_of(files, workers), train=False)
    message = str(caught.value)
    assert message.startswith(f"cannot read the image in {bad}: ")
    assert "restore or remove it" in message
    assert "Traceback" not in message
    assert "worker" not in message
    assert "\n" not in message


def test_good_batches_before_a_corrupt_image_still_arrive(files):
    files[6].write_text("not an image")
    batches = split_of(files).batches(4, train=False)
    assert next(batches)[1].tolist() == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"06\.png"):
        next(batches)


def test_survives_pickling_for_spawned_workers(files):
    split = split_of(files)
    images, _, _ = epoch(split, train=True)
    assert torch.equal(epoch(pickle.loads(pickle.dumps(split)), train=True)[0], images)


def test_abandoning_a_pass_is_harmless(files):
    split = split_of(files, workers=2)
    next(split.batches(2, train=True))
    assert len(epoch(split, train=False)[1]) == COUNT


def test_refuses_a_batch_size_below_one(files):
    with pytest.raises(UserError, match="batch size 0"):
        next(split_of(files).batches(0, train=True))


def test_a_larger_smallest_crop_shows_more_of_each_image(files):
    """Of images that brighten from left to right a whole one shows all shades, a small part few."""
    ramp = np.repeat(np.linspace(0, 255, 64).astype(np.uint8)[None, :, None], 64, 0).repeat(3, 2)
    for file in files:
        Image.fromarray(ramp).save(file)
    small, large = split_of(files).with_smallest_crop(0.01), split_of(files).with_smallest_crop(0.9)

    def shades(split):
        images = epoch(split, train=True)[0]
        return (images.amax((1, 2, 3)) - images.amin((1, 2, 3))).mean()

    assert shades(large) > 200 > shades(small)
    assert split_of(files).smallest_crop == 0.08
    assert torch.equal(epoch(large, train=False)[0], epoch(small, train=False)[0])
