"""CIFAR by name is the Parquet loader that knows what to expect."""

import pytest

from dgconv.data import TensorSplit, decode, load_data
from dgconv.errors import UserError


@pytest.fixture
def cifar(tmp_path, write_parquet, noise):
    """A folder that looks like CIFAR with `classes` classes, and an even number of images a split."""

    def write(classes, side=32, images=2, **options):
        names = [f"class {number}" for number in range(classes)]
        for split in ("train", "test"):
            file = tmp_path / "plain_text" / f"{split}-00000-of-00001.parquet"
            write_parquet(
                file, noise(images, side, side), [classes - 1, 3] * (images // 2), image="img", names=names, **options
            )
        return tmp_path

    return write


def test_cifar10(cifar):
    data = load_data("cifar10", cifar(10))
    assert (data.name, len(data.classes), data.input_size) == ("cifar10", 10, (3, 32, 32))
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert data.train.stats == (data.mean, data.std)
    assert isinstance(data.train, TensorSplit)
    assert (data.train.pad, data.train.flip) == (4, True)


def test_cifar100_uses_the_fine_labels(cifar):
    coarse = {"_type": "ClassLabel", "names": [f"group {number}" for number in range(20)]}
    root = cifar(100, label="fine_label", extra={"coarse_label": [0, 0]}, extra_features={"coarse_label": coarse})
    data = load_data("cifar100", root, image_size=32)
    assert data.classes[99] == "class 99"
    assert data.test.labels.tolist() == [99, 3]
    assert data.std == (0.2673, 0.2564, 0.2762)
    with pytest.raises(UserError, match="20 classes; cifar100 has 100"):
        load_data("cifar100", root, label_column="coarse_label")


def test_refuses_another_number_of_classes(cifar):
    with pytest.raises(UserError, match=r"10 classes; cifar100 has 100.*'parquet'"):
        load_data("cifar100", cifar(10))


@pytest.mark.parametrize("side", [28, 96])
def test_refuses_images_of_another_size(cifar, side):
    with pytest.raises(UserError, match="not 32 x 32, as in cifar10"):
        load_data("cifar10", cifar(10, side=side))


def test_refuses_to_resize(cifar):
    with pytest.raises(UserError, match="image size 224 is not 32"):
        load_data("cifar10", cifar(10), image_size=224)


def test_decoding_without_worker_processes(cifar, monkeypatch):
    asked = []
    loader = decode.DataLoader
    monkeypatch.setattr(decode, "PART", 1)
    monkeypatch.setattr(decode, "default_workers", lambda: 2)
    monkeypatch.setattr(
        decode, "DataLoader", lambda *args, **options: asked.append(options["num_workers"]) or loader(*args, **options)
    )
    folder = cifar(10, images=8)
    load_data("cifar10", folder, workers=0)
    assert asked == [0, 0]
    load_data("cifar10", folder)
    assert asked[2:] == [2, 2]
