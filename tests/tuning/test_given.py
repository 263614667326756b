"""Batches that a program has in its hands, as a split."""

import pytest
import torch

from dgconv.errors import UserError
from dgconv.tuning.given import LoaderSplit, data_of

IMAGES = torch.arange(10.0).view(10, 1, 1, 1).expand(10, 3, 2, 2)
LABELS = torch.arange(10) % 3
BATCHES = list(zip(IMAGES.split(4), LABELS.split(4), strict=True))


def numbers(split, size, **options):
    return [x[:, 0, 0, 0].int().tolist() for x, _ in split.batches(size, **options)]


def test_batches_are_regrouped():
    split = LoaderSplit(BATCHES, "train")
    assert numbers(split, 3, train=False) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert numbers(split, 3, train=True) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert numbers(split, 3, train=True, start=2) == [[6, 7, 8]]
    assert numbers(split, 5, train=True, shard=(1, 2)) == [[1, 3], [6, 8]]
    assert numbers(split, 50, train=True) == [list(range(10))]
    assert torch.equal(split.labels, LABELS)


def test_a_data_set_of_two_loaders():
    data = data_of(BATCHES, BATCHES[:1])
    assert data.input_size == (3, 2, 2)
    assert data.classes == ["0", "1", "2"]
    assert (len(data.train), len(data.test)) == (10, 4)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "gave no batch"),
        (iter(BATCHES), "only once"),
        ([IMAGES], "must give pairs"),
        ([(IMAGES.byte(), LABELS)], "float images"),
        ([(IMAGES, LABELS[:3])], "float images"),
    ],
)
def test_what_is_no_loader(batches, message):
    with pytest.raises(UserError, match=message):
        LoaderSplit(batches, "train")
