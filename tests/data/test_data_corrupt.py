"""Corrupt images: an error that names them or, by choice, skipped, named once and counted."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from dgconv.data import EncodedSplit, TensorSplit, load_data
from dgconv.errors import UserError

CLASSES = ("ant", "bee")
IMAGES = 6  # a class and split
TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"


def jpeg(value, side=40) -> bytes:
    """Of one colour, so that a batch shows which image it holds; noise in one corner makes the file long."""
    pixels = np.full((side, side, 3), value, np.uint8)
    pixels[:8, :8] = np.random.default_rng(value).integers(0, 256, (8, 8, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def png(value, side=40) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


DAMAGES = {
    "cut JPEG": lambda value: jpeg(value)[:-200],
    "cut PNG": lambda value: png(value)[:60],
    "PNG with a wrong checksum": lambda value: png(value)[:45] + b"\0\0\0\0" + png(value)[49:],
    "text": lambda value: b"no image",
}


def value_of(split, number) -> int:
    """The colour of an image: 10, 30, 50, ... in training, 20, 40, ... in test."""
    return 20 * number + (10 if split == "train" else 20)


def contents(split, bad, damage):
    return [
        DAMAGES[damage](value_of(split, number)) if number in bad.get(split, ()) else png(value_of(split, number))
        for number in range(2 * IMAGES)
    ]


@pytest.fixture(params=["folder", "parquet"])
def make_data(request, tmp_path, write_parquet):
    """Writes twelve images a split, some of them damaged, and loads them."""

    def make(bad, damage="cut JPEG", **options):
        for split, file in (("train", TRAIN), ("test", TEST)):
            if request.param == "parquet":
                labels = [number // IMAGES for number in range(2 * IMAGES)]
                write_parquet(tmp_path / file, contents(split, bad, damage), labels, names=CLASSES)
                continue
            for number, content in enumerate(contents(split, bad, damage)):
                path = tmp_path / split / CLASSES[number // IMAGES] / f"{number:02d}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return load_data(
            request.param, tmp_path, image_size=24, **{"workers": 0, "skip_corrupt_images": True} | options
        )

    return make


def epoch(split, *, train, batch_size=4, **options):
    """Labels, the colour in the middle of every image and the number skipped, batch by batch."""
    skipped, batches = [], []
    generator = torch.Generator().manual_seed(0)
    for images, labels in split.batches(
        batch_size, train=train, generator=generator, on_skip=skipped.append, **options
    ):
        pixels = images * torch.tensor(split.stats.std).view(3, 1, 1) + torch.tensor(split.stats.mean).view(3, 1, 1)
        batches.append((labels.tolist(), (255 * pixels[:, 0, 12, 12]).round().int().tolist()))
    return batches, sum(skipped)


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_the_choice_the_first_one_stops(make_data, damage):
    data = make_data({"train": [7]}, damage, skip_corrupt_images=False)
    assert isinstance(data.train, EncodedSplit)
    with pytest.raises(
        UserError, match=r"(07\.png|row 7): .*remove it, or leave such images out with `skip_corrupt_images`"
    ):
        epoch(data.train, train=True)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_leaves_them_out(make_data, damage, workers, caplog):
    data = make_data({"test": [1, 4, 5, 6, 7]}, damage, workers=workers)
    for _ in range(2):
        batches, skipped = epoch(data.test, train=False)
        assert batches == [([0, 0, 0], [20, 60, 80]), ([1] * 4, [180, 200, 220, 240])], "no empty batch in between"
        assert skipped == 5
    assert len(caplog.messages) == 5, "each is named once, however many passes"
    for number in (1, 4, 5, 6, 7):
        assert sum(f"{number:02d}.png" in text or f"row {number}:" in text for text in caplog.messages) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_training_batches_keep_their_size(make_data, workers, caplog):
    """Each corrupt image is replaced by the next good one, which brings its own label."""
    whole, skipped = epoch(make_data({}).train, train=True)
    assert skipped == 0
    data = make_data({"train": [2, 5, 6, 11]}, workers=workers)
    batches, skipped = epoch(data.train, train=True)
    instead = {2: 3, 5: 7, 6: 7, 11: 0}
    assert skipped == 4
    assert len(caplog.messages) == 4
    for (labels, colours), (_, old) in zip(batches, whole, strict=True):
        numbers = [(colour - 10) // 20 for colour in old]
        expected = [instead.get(number, number) for number in numbers]
        assert colours == [value_of("train", number) for number in expected]
        assert labels == [number // IMAGES for number in expected]
    assert epoch(data.train, train=True) == (batches, skipped), "the same again"


def test_a_pass_resumed_or_shared_out_is_the_same_pass(make_data):
    split = make_data({"train": [2, 5, 6, 11]}).train
    batches, skipped = epoch(split, train=True)
    assert epoch(split, train=True, start=1)[0] == batches[1:]
    shares = [epoch(split, train=True, shard=(rank, 2)) for rank in range(2)]
    assert sum(count for _, count in shares) == skipped == 4
    for number, (labels, colours) in enumerate(batches):
        for rank, (share, _) in enumerate(shares):
            assert share[number] == (labels[rank::2], colours[rank::2])


def test_a_whole_batch_of_them(make_data):
    split = make_data({"train": range(11)}).train
    batches, skipped = epoch(split, train=True, batch_size=2)
    assert {colour for _, colours in batches for colour in colours} == {value_of("train", 11)}
    assert [len(labels) for labels, _ in batches] == [2] * 6
    assert skipped == 11


def test_nothing_but_corrupt_images(make_data):
    with pytest.raises(UserError, match=r"none of the 12 images .* can be read"):
        epoch(make_data({"train": range(12)}).train, train=True)


def test_a_file_that_is_gone_is_not_skipped(tmp_path, write_images):
    write_images(tmp_path, "train/ant/1.png", "train/ant/2.png", "test/ant/1.png")
    data = load_data("folder", tmp_path, image_size=24, workers=0, skip_corrupt_images=True)
    (tmp_path / "train/ant/2.png").unlink()
    with pytest.raises(UserError, match=r"2\.png: .*No such file"):
        epoch(data.train, train=True)


@pytest.mark.parametrize("bad", [{"train": [0, 3], "test": [11]}, {"train": [5], "test": [0, 1]}])
def test_small_parquet_images_held_in_memory(tmp_path, write_parquet, bad, caplog):
    for split, file in (("train", TRAIN), ("test", TEST)):
        labels = [number // IMAGES for number in range(2 * IMAGES)]
        write_parquet(tmp_path / file, contents(split, bad, "cut PNG"), labels, names=CLASSES)
    with pytest.raises(UserError, match=f"row {bad['train'][0]}: "):
        load_data("parquet", tmp_path)
    data = load_data("parquet", tmp_path, skip_corrupt_images=True)
    assert isinstance(data.train, TensorSplit)
    for split, name in ((data.train.to("cpu"), "train"), (data.test, "test")):
        good = [number for number in range(2 * IMAGES) if number not in bad[name]]
        assert split.images[:, 0, 0, 0].tolist() == [value_of(name, number) for number in good]
        assert split.labels.tolist() == [number // IMAGES for number in good]
        assert epoch(split, train=False)[1] == len(bad[name])
        assert epoch(split, train=True, start=1)[1] == 0, "told of when the pass began"
        assert epoch(split, train=True, shard=(1, 2))[1] == 0, "told of by the first process"
    assert len(caplog.messages) == sum(map(len, bad.values()))
