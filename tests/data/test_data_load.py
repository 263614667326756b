"""Choosing a data set by name, and the mistakes one can make there."""

import pytest

import dgconv.data
from dgconv.data import list_data, load_data
from dgconv.errors import UserError


def test_names():
    assert list_data() == ["digits", "cifar10", "cifar100", "parquet", "folder"]


def test_all_is_there():
    assert all(hasattr(dgconv.data, name) for name in dgconv.data.__all__)


def test_a_near_name_is_suggested():
    with pytest.raises(UserError, match=r"unknown data set 'cifar-10'.*'cifar10'"):
        load_data("cifar-10")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "parquet", "folder"])
def test_needs_a_folder(name):
    with pytest.raises(UserError, match=f"{name!r} needs `data_dir`.*train"):
        load_data(name)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "parquet", "folder"])
def test_a_missing_folder_is_named(name, tmp_path):
    with pytest.raises(UserError, match=r"nowhere does not exist.*Give `data_dir`"):
        load_data(name, tmp_path / "nowhere")


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=f"{tmp_path}/pets does not exist"):
        load_data("folder", "~/pets")


@pytest.mark.parametrize("size", [0, -1])
def test_refuses_a_size_below_one(size):
    with pytest.raises(UserError, match=f"image size {size} "):
        load_data("digits", image_size=size)


def test_refuses_a_negative_number_of_workers(tmp_path):
    with pytest.raises(UserError, match="-1 workers"):
        load_data("folder", tmp_path, workers=-1)


def test_the_number_of_workers_reaches_both_splits(tmp_path, write_images, write_parquet, noise):
    write_images(tmp_path / "files", "train/a/1.png", "test/a/1.png")
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-00000-of-00001.parquet", noise(2, height=80), [0, 1])
    for name, folder in (("folder", tmp_path / "files"), ("parquet", tmp_path)):
        data = load_data(name, folder, workers=3)
        assert (data.train.workers, data.test.workers) == (3, 3), name


@pytest.mark.parametrize("name", ["digits", "folder"])
def test_refuses_a_label_column_where_there_are_no_columns(name, tmp_path):
    with pytest.raises(UserError, match=f"label column 'kind' has no meaning for '{name}'"):
        load_data(name, tmp_path, label_column="kind")
