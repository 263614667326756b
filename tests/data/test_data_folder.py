"""One folder per class."""

import os
import sys

import pytest
from PIL import Image

from dgconv.data import EncodedSplit, load_data
from dgconv.data.stats import IMAGENET
from dgconv.errors import UserError

TRAIN = ("train/dog/1.png", "train/cat/1.png", "train/cat/deep/er/2.JPG", "train/emu/3.webp")
TEST = ("test/cat/1.bmp", "test/emu/1.ppm", "test/emu/2.jpeg")


def load(root):
    return load_data("folder", root, image_size=24, workers=0)


def labels(split) -> list[int]:
    return [int(label) for _, batch in split.batches(2, train=False) for label in batch]


def test_classes_are_the_sorted_folders_of_train(tmp_path, write_images):
    write_images(tmp_path, *TRAIN, *TEST)
    (tmp_path / "train/cat/notes.txt").write_text("not an image")
    (tmp_path / "train/.cache").mkdir()
    data = load(tmp_path)
    assert data.classes == ["cat", "dog", "emu"]
    assert labels(data.train) == [0, 0, 1, 2]
    assert labels(data.test) == [0, 2, 2]
    assert data.input_size == (3, 24, 24)
    assert (data.mean, data.std) == IMAGENET
    assert isinstance(data.train, EncodedSplit)
    images, _ = next(data.train.batches(4, train=True))
    assert images.shape == (4, 3, 24, 24)


def test_every_format_that_is_read_counts(tmp_path, write_images):
    write_images(tmp_path, *TRAIN, "test/cat/1.gif", "test/cat/2.tif", "test/cat/3.TIFF", "test/emu/4.jfif")
    assert labels(load(tmp_path).test) == [0, 0, 0, 2]


def test_the_usual_size_is_224(tmp_path, write_images):
    write_images(tmp_path, *TRAIN, *TEST)
    data = load_data("folder", str(tmp_path), workers=0)
    assert data.input_size == (3, 224, 224)
    assert next(data.test.batches(1, train=False))[0].shape == (1, 3, 224, 224)


@pytest.mark.parametrize(
    ("present", "used"),
    [
        (("test", "val", "validation"), "test"),
        (("val", "validation"), "val"),
        (("validation",), "validation"),
    ],
)
def test_the_test_split(tmp_path, write_images, present, used):
    write_images(tmp_path, *TRAIN)
    for name in present:
        write_images(tmp_path, f"{name}/cat/1.png", *([f"{name}/cat/2.png"] if name == used else []))
    assert len(load(tmp_path).test) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems forbid such names")
def test_a_file_name_that_is_not_text(tmp_path, write_images):
    write_images(tmp_path, *TRAIN, *TEST)
    Image.new("RGB", (9, 9)).save(os.fsdecode(os.fsencode(tmp_path) + b"/test/cat/\xff.png"))
    assert labels(load(tmp_path).test) == [0, 0, 2, 2]


def test_hidden_images_are_no_images_of_the_users(tmp_path, write_images):
    """Copies that a notebook keeps would count twice, and what macOS leaves beside images is none."""
    write_images(tmp_path, *TRAIN, *TEST, "test/cat/.ipynb_checkpoints/1-checkpoint.bmp")
    (tmp_path / "test/cat/._1.bmp").write_bytes(b"no image")
    assert labels(load(tmp_path).test) == [0, 2, 2]


def test_linked_folders_are_read_each_once(tmp_path, write_images):
    write_images(tmp_path, *TRAIN, *TEST, "more/7.png", "more/8.png")
    (tmp_path / "test/cat/linked").symlink_to(tmp_path / "more")
    (tmp_path / "test/cat/round").symlink_to(tmp_path / "test/cat")
    (tmp_path / "more/back").symlink_to(tmp_path / "test/cat")
    assert labels(load(tmp_path).test) == [0, 0, 0, 2, 2]


def test_a_folder_called_like_an_image(tmp_path, write_images):
    write_images(tmp_path, *TRAIN, *TEST, "test/cat/all.png/1.png")
    assert labels(load(tmp_path).test) == [0, 0, 2, 2]


def test_a_folder_that_cannot_be_read_is_told(tmp_path, write_images, monkeypatch):
    """Else the training would go on with some of the images only."""
    write_images(tmp_path, *TRAIN, *TEST)
    scandir = os.scandir

    def locked(place):
        if str(place).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(PermissionError, match="train/cat/deep"):
        load(tmp_path)


def refusal(root) -> str:
    with pytest.raises(UserError) as caught:
        load(root)
    return str(caught.value)


def test_a_missing_folder_says_what_is_beside_it(tmp_path):
    (tmp_path / "pictures").mkdir()
    message = refusal(tmp_path / "picture" / "s")
    assert f"{tmp_path}/picture/s does not exist" in message
    assert "holds pictures/" in message
    assert "train/<class>/" in message


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "zip").touch()
    assert f"{tmp_path}/zip is a file" in refusal(tmp_path / "zip")


def test_no_train(tmp_path, write_images):
    write_images(tmp_path, *TEST)
    assert f"{tmp_path} has no train/; found test/" in refusal(tmp_path)


def test_no_test(tmp_path, write_images):
    write_images(tmp_path, *TRAIN)
    assert "has no test split (test/, val/, validation/); found train/" in refusal(tmp_path)


def test_no_class_folders(tmp_path, write_images):
    write_images(tmp_path, "train/1.png", *TEST)
    message = refusal(tmp_path)
    assert f"{tmp_path}/train has no class folders" in message
    assert "found 1.png" in message


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_empty_class(tmp_path, write_images, split):
    write_images(tmp_path, *TRAIN, *TEST)
    for file in (tmp_path / split / "cat").rglob("*.*"):
        file.unlink()
    (tmp_path / split / "cat" / "readme.md").touch()
    message = refusal(tmp_path)
    assert f"{tmp_path}/{split}/cat has no images (.png, .jpg" in message
    assert "readme.md" in message


def test_a_test_class_that_train_lacks(tmp_path, write_images):
    write_images(tmp_path, *TRAIN, *TEST, "test/yak/1.png")
    message = refusal(tmp_path)
    assert f"{tmp_path}/test/yak is a class that train/ does not have" in message
    assert "cat, dog, emu" in message


def test_many_names_are_cut_short(tmp_path):
    for number in range(20):
        (tmp_path / f"file{number:02d}").touch()
    assert "found file00, file01, file02, file03, file04, file05 and 14 more" in refusal(tmp_path)


def test_an_empty_folder(tmp_path):
    assert "found nothing" in refusal(tmp_path)


def test_photos_are_turned_as_the_camera_says(tmp_path):
    picture = Image.new("RGB", (40, 40), "white")
    picture.paste("black", (0, 0, 40, 20))  # dark above
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    for folder, notes in (("train/a", None), ("train/b", exif), ("test/a", None), ("test/b", exif)):
        (tmp_path / folder).mkdir(parents=True)
        picture.save(tmp_path / folder / "1.jpg", **({"exif": notes} if notes else {}))
    (images, _), *_ = load(tmp_path).test.batches(2, train=False)
    upper, lower = images[:, :, :8].mean((1, 2, 3)), images[:, :, -8:].mean((1, 2, 3))
    assert upper[0] < lower[0]
    assert upper[1] > lower[1]


def test_classes_that_cannot_be_meant_are_told(tmp_path, write_images, caplog):
    write_images(tmp_path, *TRAIN, *TEST)
    load(tmp_path)
    assert "1 of 3 classes have no test image, so that errors say nothing about them: dog" in caplog.text
    caplog.clear()
    write_images(tmp_path / "one", "train/cat/1.png", "test/cat/1.png")
    load(tmp_path / "one")
    assert "has one class only, cat: there is nothing to tell apart" in caplog.text
    assert "no test image" not in caplog.text


def test_a_share_of_train_is_tested_on_where_there_is_no_test(tmp_path, write_images):
    write_images(tmp_path, *(f"train/{name}/{number}.png" for name in ("cat", "dog") for number in range(10)))
    with pytest.raises(UserError, match="`test_share`"):
        load(tmp_path)
    data = load_data("folder", tmp_path, image_size=24, workers=0, test_share=0.2)
    assert labels(data.test) == [0, 0, 1, 1]
    assert len(data.train) == 16
    again = load_data("folder", tmp_path, image_size=24, workers=0, test_share=0.2)
    places = [[split.source.where(index) for index in range(len(split))] for split in (data.train, data.test)]
    assert places == [[split.source.where(index) for index in range(len(split))] for split in (again.train, again.test)]
    assert not set(places[0]) & set(places[1])


def test_a_share_to_test_on_needs_two_images_a_class_and_no_test_folder(tmp_path, write_images):
    write_images(tmp_path, *TRAIN)
    with pytest.raises(UserError, match="one image only"):
        load_data("folder", tmp_path, test_share=0.2)
    write_images(tmp_path, *TEST)
    with pytest.raises(UserError, match="Leave `test_share` out"):
        load_data("folder", tmp_path, test_share=0.2)
    with pytest.raises(UserError, match="not for digits"):
        load_data("digits", test_share=0.2)
