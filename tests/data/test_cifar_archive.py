"""CIFAR from its original archives: the same images whatever the form; crafted files run nothing and are refused."""

import gzip
import os
import pickle

import numpy as np
import pytest
import torch

from dgconv.data import TensorSplit, cifar_archive, load_data, look_at_data, pickles
from dgconv.data.cifar_archive import FORMS, PIXELS
from dgconv.data.pickles import read_byte_arrays
from dgconv.errors import UserError
from tests.cifar_archives import as_python_2_pickled_it, files_of, packed, pixels_of, write

ALL = [(name, form) for name, forms in FORMS.items() for form in forms]
CLASSES = {"cifar10": 10, "cifar100": 100}


@pytest.mark.parametrize("how", ["archive", "file", "folder", "inside"])
@pytest.mark.parametrize(("name", "form"), ALL, ids=lambda value: getattr(value, "archive", value))
def test_every_form_gives_the_same_images(name, form, how, tmp_path):
    classes = CLASSES[name]
    data = load_data(name, write(form, tmp_path, files_of(form, classes), how))
    assert (data.name, data.input_size, data.classes[1]) == (name, (3, 32, 32), "class_1")
    assert len(data.classes) == classes
    parts = len(form.train)
    expected = np.concatenate([pixels_of(3, number) for number in range(parts)]).reshape(-1, 3, 32, 32)
    assert isinstance(data.train, TensorSplit)
    assert torch.equal(data.train.images, torch.from_numpy(expected))
    assert torch.equal(data.test.images, torch.from_numpy(pixels_of(3, parts).reshape(-1, 3, 32, 32)))
    assert data.train.labels.tolist() == [number + image for number in range(parts) for image in range(3)]
    assert (data.train.pad, data.train.flip) == (4, True)
    assert data.train.stats == (data.mean, data.std)
    assert look_at_data(name, tmp_path).train_images == 50_000


def test_is_as_in_parquet(tmp_path, write_parquet):
    """Channels, rows and columns in the order of the same images as files."""
    form = FORMS["cifar10"][0]
    original = load_data("cifar10", write(form, tmp_path, files_of(form, 10), "folder"))
    other = tmp_path / "parquet"
    for split, images in (("train", original.train), ("test", original.test)):
        pixels = [image.permute(1, 2, 0).numpy() for image in images.images]
        file = other / f"{split}-00000-of-00001.parquet"
        write_parquet(file, pixels, images.labels.tolist(), names=original.classes)
    same = load_data("cifar10", other)
    assert torch.equal(same.train.images, original.train.images)
    assert torch.equal(same.test.labels, original.test.labels)
    assert (same.train.pad, same.train.flip, same.mean) == (4, True, original.mean)


def test_missing_names_are_numbers(tmp_path):
    form = FORMS["cifar10"][1]
    files = files_of(form, 10)
    del files[form.names]
    assert load_data("cifar10", write(form, tmp_path, files, "folder")).classes == list("0123456789")


def test_labels_of_cifar100_are_the_fine_ones(tmp_path):
    form = FORMS["cifar100"][0]
    root = write(form, tmp_path, files_of(form, 100), "folder")
    assert load_data("cifar100", root, label_column="fine_label").train.labels.tolist() == [0, 1, 2]
    with pytest.raises(UserError, match="no label column 'coarse_label', only 'fine_label'"):
        load_data("cifar100", root, label_column="coarse_label")


PICKLES, BYTES = FORMS["cifar10"]


def test_what_is_missing_is_named(tmp_path):
    files = files_of(PICKLES, 10)
    del files["data_batch_3"]
    message = "has no data_batch_3; found .*data_batch_1.*download cifar-10-python.tar.gz again"
    with pytest.raises(UserError, match=message):
        load_data("cifar10", write(PICKLES, tmp_path, files, "folder"))
    with pytest.raises(UserError, match=message):
        load_data("cifar10", write(PICKLES, tmp_path, files, "file"))


def test_a_folder_with_nothing_of_it(tmp_path):
    with pytest.raises(UserError, match=r"found nothing.*cifar-10-python.tar.gz or cifar-10-binary.tar.gz.*parquet"):
        load_data("cifar10", tmp_path)
    with pytest.raises(UserError, match=r"does not exist.*cifar-100-python.tar.gz"):
        load_data("cifar100", tmp_path / "gone")


def batch(**changes):
    return as_python_2_pickled_it({"data": pixels_of(3, 0), "labels": [0, 1, 2]} | changes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (batch(labels=[0, 1]), "has 3 images and 2 labels"),
        (batch(labels=[0, 1, 10]), "no numbers from 0 to 9"),
        (batch(labels=[0, 1, True]), "no numbers from 0 to 9"),
        (batch(labels=None), "no list 'labels'"),
        (batch(data=pixels_of(3, 0)[:, :-1]), "no array 'data' with 3072 columns"),
        (batch(data=[[0] * 4]), "no array 'data' with 3072 columns"),
        (batch(data=pixels_of(3, 0).astype(np.float32)), "calls a function with something else than CIFAR has"),
        (as_python_2_pickled_it([1]), "holds no dictionary"),
        (batch()[:-2], "is not a file of CIFAR"),
        (b"<html>not found</html>", "is not a file of CIFAR"),
        (b"", "is not a file of CIFAR"),
    ],
)
def test_wrong_batches_are_refused(content, message, tmp_path):
    files = files_of(PICKLES, 10) | {"data_batch_2": content}
    with pytest.raises(UserError, match=rf"data_batch_2 .*{message}.*cifar-10-python.tar.gz"):
        load_data("cifar10", write(PICKLES, tmp_path, files, "folder"))


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\xff" * 3073])
def test_wrong_bytes_are_refused(content, tmp_path):
    files = files_of(BYTES, 10) | {"test_batch.bin": content}
    with pytest.raises(UserError, match=r"test_batch.bin has .*cifar-10-binary.tar.gz"):
        load_data("cifar10", write(BYTES, tmp_path, files, "folder"))


class Evil:
    def __init__(self, function, *given):
        self.called = function, given

    def __reduce__(self):
        return self.called


def laughs(depth=60):
    """A list of two lists of two lists: small in memory, without end where it is shown."""
    value = [1]
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "content",
    [
        *(pickle.dumps({"data": Evil(os.mkdir, "ran")}, protocol) for protocol in range(6)),
        *(pickle.dumps(Evil(eval, "__import__('os').mkdir('ran')"), protocol) for protocol in range(6)),
        b"cos\nmkdir\n(S'ran'\ntR.",
        b"(S'ran'\nios\nmkdir\n.",
        b"cnumpy\nndarray\n(I1000000000000\nI1000000000000\ntR.",
        b"cnumpy\nndarray\n.",
        b"(cnumpy\nndarray\nl.",
        batch(data=np.array([None, {}], dtype=object)),
        pickle.dumps({"data": np.zeros(3, "V3")}, 2),
        b"\x80\x02]r\xff\xff\xff\xffj\x00\x00\x00\x00.",
        b"\x80\x02X\xff\xff\xff\x7f.",
        b"\x80\x02\x8a\xff.",
        b"t.", b"R.", b"b.", b"u.", b"0.", b"s.", b"a.", b"(", b".", b"2.", b"}(]K\x02u.",
    ],
    ids=lambda content: repr(content[:24]),
)  # fmt: skip
def test_crafted_pickles_run_nothing_and_are_refused(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):  # noqa: PT011
        read_byte_arrays(content)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("protocol", [2, 3])
def test_plain_values_are_read_as_pickle_reads_them(protocol):
    value = {"a": [1, -2, 300, 70_000, 2**40, True, None], "b": (1.5, "text", ()), "c": {"d": []}}
    read = read_byte_arrays(pickle.dumps(value | {"data": pixels_of(2, 0)}, protocol))
    assert np.array_equal(read.pop("data"), pixels_of(2, 0))
    assert read == value


def test_little_that_would_become_much(monkeypatch):
    monkeypatch.setattr(pickles, "MOST_INSTRUCTIONS", 100)
    with pytest.raises(ValueError, match="too many instructions"):
        read_byte_arrays(b"\x80\x02" + b"]" * 101 + b".")
    monkeypatch.undo()
    once = batch(filenames=["x" * 10**6])
    text = once.index(b"T" + (10**6).to_bytes(4, "little"))
    array = once[once.index(b"cnumpy.core") : once.index(b"T" + (3 * PIXELS).to_bytes(4, "little"))]
    put = b"\x80\x02" + once[text : text + 5 + 10**6] + b"r\xff\0\0\0]"
    again = array.replace(b"K\x03M\x00\x0c", b"K\x01J@B\x0f\x00") + b"j\xff\0\0\0tb" + b"a"
    with pytest.raises(ValueError, match="arrays larger than itself"):
        read_byte_arrays(put + again * 50 + b".")


def test_lists_in_lists_are_not_shown(tmp_path):
    """A message with one would never be done."""
    value = laughs()
    for changes in ({"labels": value}, {"data": value}, {"batch_label": value, "labels": [value] * 3}):
        files = files_of(PICKLES, 10) | {"data_batch_2": pickle.dumps({"data": pixels_of(3, 0)} | changes, 2)}
        for name, file in files.items():
            (tmp_path / name).write_bytes(file)
        with pytest.raises(UserError, match="data_batch_2 has"):
            load_data("cifar10", tmp_path)
    for crafted in (b"}" + pickle.dumps(value, 2)[2:-1] + b"K\x01s.", pickle.dumps(value, 2)[2:-1] + b")R."):
        with pytest.raises(ValueError):  # noqa: PT011
            read_byte_arrays(crafted)


# -- archives ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [b"77777777777\0", b"-0000000001\0", b"\x80" + b"\xff" * 11, b"nonsense\0\0\0\0"])
def test_sizes_that_no_file_has(size, tmp_path):
    tar = bytearray(gzip.decompress(packed(PICKLES, files_of(PICKLES, 10))))
    tar[512 + 124 : 512 + 136] = size
    (tmp_path / PICKLES.archive).write_bytes(gzip.compress(bytes(tar)))
    with pytest.raises(UserError, match=r"cifar-10-python.tar.gz cannot be read: .* as published"):
        load_data("cifar10", tmp_path)


@pytest.mark.parametrize("content", [b"", b"no archive", packed(PICKLES, files_of(PICKLES, 10))[:-3000]])
def test_archives_that_are_none(content, tmp_path):
    (tmp_path / PICKLES.archive).write_bytes(content)
    with pytest.raises(UserError, match=r"cifar-10-python.tar.gz (cannot be read|has no data_batch_1)"):
        load_data("cifar10", tmp_path)


def test_paths_that_lead_elsewhere_are_passed_over(tmp_path):
    files = files_of(PICKLES, 10) | {"../../escaped": b"x"}
    data = load_data("cifar10", write(PICKLES, tmp_path, files, "archive"))
    assert len(data.train) == 15
    assert [entry.name for entry in tmp_path.iterdir()] == [PICKLES.archive]


def test_an_archive_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar_archive, "MOST_TOGETHER", 2**20)
    header = b"a".ljust(124, b"\0") + b"0".ljust(32, b"\0")
    (tmp_path / PICKLES.archive).write_bytes(gzip.compress(header.ljust(512, b"\0") * 2100))
    with pytest.raises(UserError, match="more than any file of it should have"):
        load_data("cifar10", tmp_path)
