"""Parquet files as the Hugging Face hub has them."""

import json
import os
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dgconv.data import EncodedSplit, TensorSplit, load_data, rows
from dgconv.data.columns import find_columns
from dgconv.data.rows import read_rows, read_schema
from dgconv.data.stats import IMAGENET, measure
from dgconv.errors import UserError

TRAIN, TEST = "train-00000-of-00001.parquet", "test-00000-of-00001.parquet"


@pytest.fixture
def both(tmp_path, write_parquet, noise):
    """Writes the two splits with the same options; returns their folder."""

    def write(folder=tmp_path, train=TRAIN, test=TEST, **options):
        write_parquet(folder / train, noise(7), [0, 1, 2, 0, 1, 2, 0], **options)
        write_parquet(folder / test, noise(4, seed=1), [2, 1, 0, 2], **options)
        return folder

    return write


def refusal(root, **options) -> str:
    with pytest.raises(UserError) as caught:
        load_data("parquet", root, **options)
    return str(caught.value)


def test_small_images_are_kept_in_memory(both, noise):
    data = load_data("parquet", both())
    assert isinstance(data.train, TensorSplit)
    assert np.array_equal(data.train.images.permute(0, 2, 3, 1), np.stack(noise(7)))
    assert np.array_equal(data.test.images.permute(0, 2, 3, 1), np.stack(noise(4, seed=1)))
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert data.test.labels.tolist() == [2, 1, 0, 2]
    assert data.classes == ["a", "b", "c"]
    assert data.input_size == (3, 8, 8)
    assert (data.mean, data.std) == measure(data.train.images) == data.test.stats
    assert (data.train.pad, data.train.flip) == (1, True)


@pytest.mark.parametrize(
    "sizes", [[(65, 65)] * 2, [(65, 20)] * 2, [(20, 20), (20, 21)]], ids=["large", "wide", "mixed"]
)
def test_other_images_are_streamed(tmp_path, write_parquet, noise, sizes):
    images = [noise(1, height, width)[0] for width, height in sizes]
    write_parquet(tmp_path / TRAIN, images, [0, 1])
    write_parquet(tmp_path / TEST, images, [1, 2])
    data = load_data("parquet", tmp_path, workers=0)
    assert isinstance(data.train, EncodedSplit)
    assert data.input_size == (3, 224, 224)
    assert (data.mean, data.std) == IMAGENET
    images, labels = next(data.test.batches(2, train=False))
    assert images.shape == (2, 3, 224, 224)
    assert labels.tolist() == [1, 2]


def test_a_test_split_of_another_size_makes_both_streamed(tmp_path, write_parquet, noise):
    write_parquet(tmp_path / TRAIN, noise(2), [0, 1])
    write_parquet(tmp_path / TEST, noise(2, 9, 9), [0, 1])
    data = load_data("parquet", tmp_path)
    assert isinstance(data.train, EncodedSplit)
    assert isinstance(data.test, EncodedSplit)


def test_the_largest_small_image_is_64(tmp_path, write_parquet, noise):
    write_parquet(tmp_path / TRAIN, noise(2, 64, 64), [0, 1])
    write_parquet(tmp_path / TEST, noise(1, 64, 64), [0])
    assert isinstance(load_data("parquet", tmp_path).train, TensorSplit)


def test_image_size_resizes_small_images_by_streaming(both):
    root = both()
    assert isinstance(load_data("parquet", root, image_size=8).train, TensorSplit)
    data = load_data("parquet", root, image_size=12, workers=0)
    assert data.input_size == (3, 12, 12)
    assert next(data.test.batches(4, train=False))[0].shape == (4, 3, 12, 12)


def test_streamed_rows_are_the_same_with_workers(both):
    root, epochs = both(), []
    for workers in (0, 2):
        split = load_data("parquet", root, image_size=12, workers=workers).train
        generator = torch.Generator().manual_seed(1)
        epochs.append(torch.cat([images for images, _ in split.batches(2, train=True, generator=generator)]))
    assert torch.equal(*epochs)


@pytest.mark.parametrize("place", ["", "data", "plain_text"])
def test_where_the_files_may_be(tmp_path, both, place):
    both(tmp_path / place)
    assert len(load_data("parquet", tmp_path).train) == 7


def test_several_subfolders_are_ambiguous(tmp_path, both):
    both(tmp_path / "clean")
    both(tmp_path / "noisy")
    assert "holds several data sets: clean, noisy" in refusal(tmp_path)
    assert len(load_data("parquet", tmp_path / "noisy").train) == 7


@pytest.mark.parametrize("name", ["validation", "val"])
def test_validation_is_the_test_split_when_there_is_no_other(both, name):
    assert len(load_data("parquet", both(test=f"{name}-00000-of-00001.parquet")).test) == 4


def test_test_goes_before_validation(both, write_parquet, noise):
    root = both()
    write_parquet(root / "validation-00000-of-00001.parquet", noise(2), [0, 0])
    assert len(load_data("parquet", root).test) == 4


def test_shards_are_joined_in_order(tmp_path, both, write_parquet, noise):
    both()
    (tmp_path / TRAIN).unlink()
    for number in (1, 0, 2):
        write_parquet(tmp_path / f"train-0000{number}-of-00003.parquet", noise(2, seed=number), [number] * 2)
    data = load_data("parquet", tmp_path)
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert np.array_equal(data.train.images[2].permute(1, 2, 0), noise(1, seed=1)[0])


def test_missing_shards_are_named(tmp_path, both):
    both(train="train-00001-of-00004.parquet")
    message = refusal(tmp_path)
    assert "lacks 3 of the 4 files of its train split" in message
    assert "train-00000-of-00004.parquet, train-00002-of-00004.parquet, train-00003-of-00004.parquet" in message


def test_a_shard_of_three_thousand_million(both):
    folder = both(train="train-00001-of-3000000000.parquet")
    assert "lacks 2999999999 of the 3000000000 files of its train split: train-00000-of-3000000000" in refusal(folder)


def test_a_missing_test_shard_is_named(tmp_path, both):
    both(test="test-00000-of-00002.parquet")
    assert "test-00001-of-00002.parquet" in refusal(tmp_path)


def test_a_split_saved_twice_is_refused(tmp_path, both, write_parquet, noise):
    both()
    write_parquet(tmp_path / "train-00000-of-00001-0123abcd.parquet", noise(2), [0, 1])
    assert "more than one copy of its train split" in refusal(tmp_path)


def test_no_train_split(tmp_path, both):
    both()
    (tmp_path / TRAIN).unlink()
    message = refusal(tmp_path)
    assert "has no train-*.parquet" in message
    assert f"found {TEST}" in message


def test_no_test_split(tmp_path, both):
    both()
    (tmp_path / TEST).unlink()
    message = refusal(tmp_path)
    assert "has no test split (test-*.parquet, validation-*.parquet, val-*.parquet)" in message
    assert f"found {TRAIN}" in message


@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
@pytest.mark.parametrize("name", [TRAIN, TEST])
def test_a_file_that_is_not_parquet_is_named(both, name, damage):
    file = both() / name
    file.write_bytes({"truncated": file.read_bytes()[:-20], "text": b"version 1", "empty": b""}[damage])
    message = refusal(file.parent)
    assert f"cannot read {file}" in message
    assert "Download it again" in message


def test_a_file_damaged_in_the_middle_is_named(both):
    file = both() / TRAIN
    content = bytearray(file.read_bytes())
    content[4:200] = b"\xff" * 196
    file.write_bytes(content)
    assert str(file) in refusal(file.parent)


def test_the_label_column_may_be_chosen(both):
    coarse = {"_type": "ClassLabel", "names": ["x", "y"]}
    root = both(extra={}, extra_features={})
    for name in (TRAIN, TEST):
        table = pq.read_table(root / name)
        features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"] | {"coarse": coarse}
        table = table.append_column("coarse", pa.array([1] * len(table)))
        notes = json.dumps({"info": {"features": features}})
        pq.write_table(table.replace_schema_metadata({"huggingface": notes}), root / name)
    assert load_data("parquet", root).classes == ["a", "b", "c"]
    data = load_data("parquet", root, label_column="coarse")
    assert data.classes == ["x", "y"]
    assert data.test.labels.tolist() == [1] * 4


def test_a_label_column_that_is_not_there(both):
    message = refusal(both(), label_column="kind")
    assert "no column 'kind'" in message
    assert "label (int64)" in message


def test_a_label_column_that_is_not_whole_numbers(both):
    assert "no column 'image' of whole numbers" in refusal(both(), label_column="image")


@pytest.mark.parametrize(
    ("label", "other", "chosen"),
    [
        ("label", "fine_label", "label"),
        ("coarse_label", "fine_label", "fine_label"),
        ("breed", "colour", "colour"),  # the first column of the file
    ],
)
def test_preferred_labels(tmp_path, write_parquet, noise, label, other, chosen):
    for name in (TRAIN, TEST):
        write_parquet(
            tmp_path / name,
            noise(2),
            [1, 1],
            label=label,
            extra={"id": [7, 8], other: [2, 2]},
            extra_features={other: {"_type": "ClassLabel", "names": ["p", "q", "r"]}},
        )
    data = load_data("parquet", tmp_path)
    assert data.classes == (["a", "b", "c"] if chosen == label else ["p", "q", "r"])
    assert data.train.labels.tolist() == ([1, 1] if chosen == label else [2, 2])


def test_the_image_column_may_have_any_name(both):
    assert len(load_data("parquet", both(image="picture")).train) == 7


def test_without_notes_the_columns_are_guessed_and_classes_numbered(both):
    data = load_data("parquet", both(metadata=False, image="picture"))
    assert data.classes == ["0", "1", "2"]
    assert data.test.labels.tolist() == [2, 1, 0, 2]


def test_class_names_may_be_absent(both):
    assert load_data("parquet", both(names=None)).classes == ["0", "1", "2"]


def test_without_notes_an_unknown_label_column_must_be_named(both):
    root = both(metadata=False, label="kind")
    assert "does not say which column holds the labels" in refusal(root)
    assert len(load_data("parquet", root, label_column="kind").classes) == 3


def test_two_image_columns_without_notes_are_refused(both):
    root = both()
    for name in (TRAIN, TEST):
        table = pq.read_table(root / name)
        pq.write_table(table.append_column("mask", table["image"]).replace_schema_metadata(None), root / name)
    assert "several columns of encoded images" in refusal(root)


def test_no_image_column(tmp_path):
    for name in (TRAIN, TEST):
        pq.write_table(pa.table({"text": ["a"], "label": [0]}), tmp_path / name)
    message = refusal(tmp_path)
    assert "no column of encoded images" in message
    assert "text (string), label (int64)" in message


def test_a_split_with_other_columns_is_named(both, write_parquet, noise):
    root = both()
    write_parquet(root / TEST, noise(1), [0], label="kind")
    message = refusal(root)
    assert f"{root / TEST} lacks" in message
    assert "whole numbers in a column 'label'" in message
    assert "kind (int64)" in message


def test_a_split_with_labels_of_another_type_is_named(both):
    root = both()
    table = pq.read_table(root / TEST)
    pq.write_table(table.set_column(1, "label", pa.array(["a"] * 4)), root / TEST)
    assert f"{root / TEST} lacks" in refusal(root)


def test_absent_image_bytes_are_named_by_file_and_row(both, write_parquet, noise):
    root = both()
    write_parquet(root / TEST, [*noise(4), None], [0, 1, 2, 0, 1])
    assert f"{root / TEST}, row 4 has no image bytes" in refusal(root)


def test_an_absent_label_is_named_by_file_and_row(both, write_parquet, noise):
    root = both()
    write_parquet(root / TEST, noise(5), [0, 1, 2, None, 1])
    assert f"{root / TEST}, row 3 has no label" in refusal(root)


@pytest.mark.parametrize(("label", "metadata"), [(3, True), (99, False), (-2, True), (-2, False)])
def test_a_label_out_of_range_is_named_by_file_and_row(both, write_parquet, noise, label, metadata):
    root = both(metadata=metadata)
    write_parquet(root / TEST, noise(5), [0, 1, 2, 0, label], metadata=metadata)
    assert f"{root / TEST}, row 4 has label {label} in column 'label'; expected 0 to 2" in refusal(root)


def test_labels_that_are_no_classes_are_refused(both, write_parquet, noise):
    """Ids or times, of which there would be a billion."""
    root = both(metadata=False)
    write_parquet(root / TRAIN, noise(3), [0, 1, 1_000_000_000], metadata=False)
    message = refusal(root)
    assert f"{root / TRAIN}, row 2 has label 1000000000 in column 'label'; expected 0 to 99999" in message
    assert "`label_column`" in message


@pytest.mark.parametrize("file", ["train-00001-of-00002.parquet", TEST])
def test_a_file_that_numbers_the_classes_otherwise_is_refused(both, write_parquet, noise, file):
    """Its images would be learnt, or counted as wrong, under other names."""
    root = both(train="train-00000-of-00002.parquet")
    write_parquet(root / "train-00001-of-00002.parquet", noise(2), [0, 1])
    write_parquet(root / file, noise(2), [0, 1], names=("a", "c", "b"))
    assert f"{root / file} calls class 1 'c', and the first training file 'b'" in refusal(root)


def test_class_names_that_only_one_split_has(both, write_parquet, noise):
    root = both(names=None)
    write_parquet(root / TEST, noise(2), [0, 1])
    assert load_data("parquet", root).classes == ["0", "1", "2"]
    write_parquet(root / TRAIN, noise(2), [0, 1])
    write_parquet(root / TEST, noise(2), [0, 1], names=None)
    assert load_data("parquet", root).classes == ["a", "b", "c"]


@pytest.mark.parametrize(("names", "classes"), [({"0": "a"}, ["0", "1", "2"]), ([7, 8, 9], ["7", "8", "9"])])
def test_class_names_of_another_kind(both, names, classes):
    root = both(extra_features={"label": {"_type": "ClassLabel", "names": names}})
    assert load_data("parquet", root).classes == classes


def test_files_of_different_writers(both, noise, encode):
    """Some have small and some large arrays of bytes."""
    root = both(train="train-00000-of-00002.parquet")
    struct = pa.struct({"bytes": pa.large_binary()})
    images = pa.array([{"bytes": encode(pixels)} for pixels in noise(2, seed=5)], struct)
    pq.write_table(pa.table({"image": images, "label": [1, 2]}), root / "train-00001-of-00002.parquet")
    data = load_data("parquet", root)
    assert data.train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert np.array_equal(data.train.images[-2:].permute(0, 2, 3, 1), np.stack(noise(2, seed=5)))


@pytest.mark.parametrize("name", ["label", "image"])
def test_two_columns_of_one_name_are_refused(both, name):
    root = both()
    table = pq.read_table(root / TEST)
    pq.write_table(table.append_column(name, pa.array([0, 0, 0, 0])), root / TEST)
    assert f"{root / TEST} has several columns {name!r}" in refusal(root)


def test_hidden_labels_are_explained(both, write_parquet, noise):
    root = both()
    write_parquet(root / TEST, noise(2), [-1, -1])
    message = refusal(root)
    assert f"{root / TEST}, row 0 has label -1" in message
    assert "the labels of this split are hidden" in message


def test_a_corrupt_image_is_named_by_file_and_row_of_its_shard(both, write_parquet, noise):
    root = both(train="train-00000-of-00002.parquet")
    bad = root / "train-00001-of-00002.parquet"
    write_parquet(bad, [*noise(4), b"not an image"], [0] * 5)
    assert f"cannot read the image in {bad}, row 4: no known image format" in refusal(root)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_streamed_image_is_named_too(both, write_parquet, noise, workers):
    root = both(train="train-00000-of-00002.parquet")
    bad = root / "train-00001-of-00002.parquet"
    write_parquet(bad, [*noise(4), b"not an image"], [0] * 5)
    data = load_data("parquet", root, image_size=12, workers=workers)
    with pytest.raises(UserError) as caught:
        list(data.train.batches(4, train=True))
    assert str(caught.value).startswith(f"cannot read the image in {bad}, row 4: no known image format.")


def test_an_empty_split_is_refused(both, write_parquet):
    root = both()
    write_parquet(root / TEST, [], [])
    assert f"{root / TEST} has no rows" in refusal(root)


# Files whose rows are far more than their bytes, or more than Arrow holds in one piece


def rows_of(images, file, **options):
    """A file with these images, and what is read of it."""
    kind = pa.struct([("bytes", images.type)])
    column = pa.StructArray.from_arrays([images], fields=[kind.field(0)])
    pq.write_table(pa.table({"image": column, "label": [0] * len(images)}), file, **options)
    return read_rows([file], find_columns(read_schema(file), file, None))


@pytest.mark.parametrize("options", [{}, {"row_group_size": 7}, {"use_dictionary": False}, {"data_page_size": 100}])
def test_a_column_that_arrow_cannot_hold_in_one_piece(tmp_path, monkeypatch, options):
    """As of over 2 GiB of images, which a whole column is refused for."""

    def refused(*args, **kwargs):
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")

    monkeypatch.setattr(pq.ParquetFile, "read", refused)
    monkeypatch.setattr(rows, "BATCH_ROWS", (2, 3))
    images = [bytes([number]) * number for number in range(50)]
    read, labels = rows_of(pa.array(images, pa.binary()), tmp_path / "file", **options)
    assert [read.read(number) for number in range(len(read))] == images
    assert len(labels) == 50
    assert read.where(49).endswith("file, row 49")


def test_a_page_that_is_far_larger_than_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "FREE", 10_000)
    zeros = pa.array([bytes(10**7)], pa.binary())
    with pytest.raises(UserError, match=r"its pages have more than 100 times the bytes of the file"):
        rows_of(zeros, tmp_path / "file", compression="zstd", use_dictionary=False)


def test_one_image_as_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "FREE", 10_000)
    images = pa.array([np.random.default_rng(0).bytes(1000)] * 5_000, pa.binary())
    with pytest.raises(UserError, match=r"its rows have more than 100 times the bytes of the file"):
        rows_of(images, tmp_path / "file")


def test_more_rows_than_bytes(tmp_path):
    with pytest.raises(UserError, match=r"it says that it has 100,000 rows, more than bytes"):
        rows_of(pa.array([None] * 100_000, pa.binary()), tmp_path / "file")


@pytest.mark.parametrize("place", range(4, 60, 3))
def test_a_damaged_header_of_a_page(tmp_path, place):
    """Refused, or of no consequence: some numbers in it are not needed."""
    images = [b"image %d" % number for number in range(20)]
    rows_of(pa.array(images, pa.binary()), tmp_path / "file", compression="none")
    content = bytearray((tmp_path / "file").read_bytes())
    content[place] ^= 0x55
    (tmp_path / "file").write_bytes(content)
    with suppress(UserError):
        read, _ = read_rows([tmp_path / "file"], find_columns(read_schema(tmp_path / "file"), tmp_path / "file", None))
        assert len(read) == 20


def test_a_pipe_that_is_called_like_a_file(both):
    folder = both()
    (folder / TRAIN).unlink()
    os.mkfifo(folder / TRAIN)
    assert "no ordinary file" in refusal(folder)


def test_notes_that_are_nested_too_deep(both):
    folder = both()
    table = pq.read_table(folder / TRAIN)
    notes = b'{"info": {"features": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    pq.write_table(table.replace_schema_metadata({b"huggingface": notes}), folder / TRAIN)
    assert load_data("parquet", folder).classes == ["0", "1", "2"], "numbered, as without notes"
