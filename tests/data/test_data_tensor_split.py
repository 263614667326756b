"""The in-memory split: what a pass visits, and what training does to the images."""

import pytest
import torch
from torch import Tensor

from dgconv.data import Stats, TensorSplit
from dgconv.errors import UserError

RAW = Stats((0.0, 0.0, 0.0), (1 / 255,) * 3)  # normalizing by it gives back the raw pixel values
PAD = 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(count: int, *, pad: int = 0, flip: bool = False) -> TensorSplit:
    """Images of 2 x 2 whose label is their number."""
    images = torch.randint(1, 256, (count, 3, 2, 2), dtype=torch.uint8, generator=seeded())
    return TensorSplit(images, torch.arange(count), RAW, pad=pad, flip=flip)


def visited(split: TensorSplit, batch_size: int, **options) -> list[list[int]]:
    return [labels.tolist() for _, labels in split.batches(batch_size, **options)]


def test_evaluation_visits_every_image_once_in_order_untouched():
    split = numbered(10, pad=PAD, flip=True)
    assert visited(split, 4, train=False) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    images = torch.cat([images for images, _ in split.batches(4, train=False)])
    torch.testing.assert_close(images, split.images.float())


def test_training_shuffles_and_drops_the_last_incomplete_batch():
    epoch = visited(numbered(50), 16, train=True, generator=seeded())
    seen = [number for batch in epoch for number in batch]
    assert [len(batch) for batch in epoch] == [16, 16, 16]
    assert len(set(seen)) == 48
    assert seen != sorted(seen)


def test_training_keeps_images_and_labels_together():
    split = numbered(50)
    for images, labels in split.batches(16, train=True, generator=seeded()):
        torch.testing.assert_close(images, split.images[labels].float())


@pytest.mark.parametrize(("count", "sizes"), [(3, [3]), (4, [4]), (5, [4]), (8, [4, 4])])
def test_a_split_smaller_than_a_batch_is_one_short_batch(count, sizes):
    assert [len(batch) for batch in visited(numbered(count), 4, train=True)] == sizes


def test_a_process_whose_share_of_a_batch_is_empty_gets_no_batch():
    assert visited(numbered(5), 4, train=False, shard=(0, 2)) == [[0, 2], [4]]
    assert visited(numbered(5), 4, train=False, shard=(1, 2)) == [[1, 3]]


def test_the_generator_alone_decides():
    split = numbered(40, pad=1, flip=True)

    def epochs(generator: torch.Generator) -> list[Tensor]:
        return [torch.cat([x for x, _ in split.batches(8, train=True, generator=generator)]) for _ in range(2)]

    first, second = epochs(seeded(1))
    torch.manual_seed(99)
    first_again, second_again = epochs(seeded(1))
    assert torch.equal(first, first_again)
    assert torch.equal(second, second_again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, epochs(seeded(2))[0])


def test_without_a_generator_torchs_global_seed_decides():
    split = numbered(40)
    torch.manual_seed(5)
    first = visited(split, 8, train=True)
    torch.manual_seed(5)
    assert visited(split, 8, train=True) == first != visited(split, 8, train=True)


def test_crops_are_windows_of_the_padded_image_uniform_over_offsets_and_flips():
    side, count = 6, 8100  # 81 offsets x 2 flips, 50 images each on average
    image = torch.arange(1, 3 * side * side + 1, dtype=torch.uint8).view(3, side, side)
    split = TensorSplit(image.expand(count, -1, -1, -1), torch.zeros(count).long(), RAW, pad=PAD, flip=True)
    padded = torch.nn.functional.pad(image, (PAD,) * 4)
    windows = {}
    for row in range(2 * PAD + 1):
        for column in range(2 * PAD + 1):
            window = padded[:, row : row + side, column : column + side]
            for flipped in (False, True):
                view = window.flip(-1) if flipped else window
                windows[view.numpy().tobytes()] = (row, column, flipped)
    assert len(windows) == 162

    (images, _), *rest = split.batches(count, train=True, generator=seeded())
    assert not rest
    found = [windows[view.numpy().tobytes()] for view in images.round().byte()]  # KeyError: not a window
    counts = torch.bincount(torch.tensor([(r * 9 + c) * 2 + f for r, c, f in found]), minlength=162)
    assert counts.min() > 0
    chi_squared = ((counts - 50.0) ** 2 / 50).sum()
    assert 161 - 4 * 18 < chi_squared < 161 + 4 * 18  # mean 161, standard deviation 18


@pytest.mark.parametrize("batch_size", [1, 64])
def test_every_image_gets_its_own_offset(batch_size):
    white = torch.full((64, 3, 6, 6), 255, dtype=torch.uint8)
    split = TensorSplit(white, torch.arange(64), RAW, pad=PAD, flip=False)
    images = [images for images, _ in split.batches(batch_size, train=True, generator=seeded())]
    assert len(torch.cat(images).unique(dim=0)) > 30  # of 81 possible; 44 expected


def test_no_flip_means_none():
    image = torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2).expand(200, -1, -1, -1)
    split = TensorSplit(image, torch.zeros(200).long(), RAW, pad=0, flip=False)
    ((images, _),) = split.batches(200, train=True, generator=seeded())
    torch.testing.assert_close(images, image.float())


def test_normalized_by_channel():
    stats = Stats((0.1, 0.2, 0.3), (0.5, 0.25, 0.125))
    split = TensorSplit(
        torch.full((1, 3, 2, 2), 51, dtype=torch.uint8), torch.zeros(1).long(), stats, pad=0, flip=False
    )
    ((images, labels),) = split.batches(1, train=False)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    torch.testing.assert_close(images[0, :, 0, 0], torch.tensor([0.2, 0.0, -0.8]))


def test_padding_is_black_before_normalizing():
    stats = Stats((0.5,) * 3, (0.25,) * 3)
    split = TensorSplit(torch.full((99, 3, 1, 1), 255, dtype=torch.uint8), torch.arange(99), stats, pad=1, flip=False)
    ((images, _),) = split.batches(99, train=True, generator=seeded())
    assert sorted(images.unique().tolist()) == [-2.0, 2.0]


def test_a_pass_leaves_the_images_as_they_were():
    split = numbered(20, pad=1, flip=True)
    before = split.images.clone()
    list(split.batches(4, train=True))
    assert torch.equal(split.images, before)


def test_moving_keeps_everything_else():
    split = numbered(20, pad=1, flip=True).with_cutout(2)
    moved = split.to("meta")
    assert moved.images.device.type == moved.labels.device.type == "meta"
    assert (moved.pad, moved.flip, moved.cutout, moved.stats, len(moved)) == (1, True, 2, RAW, 20)


@pytest.mark.parametrize("batch_size", [0, -3])
def test_refuses_a_batch_size_below_one(batch_size):
    with pytest.raises(UserError, match=f"batch size {batch_size} .*at least 1"):
        next(numbered(4).batches(batch_size, train=False))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2).long(), r"images are torch.float32 \[2, 3, 4, 4\]"),
        (torch.zeros(2, 1, 4, 4).byte(), torch.zeros(2).long(), r"\[2, 1, 4, 4\]"),
        (torch.zeros(0, 3, 4, 4).byte(), torch.zeros(0).long(), "N > 0"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(3).long(), r"labels are torch.int64 \[3\]"),
        (torch.zeros(2, 3, 4, 4).byte(), torch.zeros(2), "labels are torch.float32"),
    ],
)
def test_refuses_tensors_of_another_kind(images, labels, message):
    with pytest.raises(UserError, match=message):
        TensorSplit(images, labels, RAW, pad=0, flip=False)


@pytest.mark.parametrize("side", [3, 4])
def test_cutout_blanks_a_square_whose_middle_is_anywhere(side):
    images = torch.full((4000, 3, 9, 8), 200, dtype=torch.uint8)
    split = TensorSplit(images, torch.arange(4000), RAW, pad=0, flip=False).with_cutout(side)
    shown = torch.cat([x for x, _ in split.batches(400, train=True, generator=seeded())])
    blank = (shown == 0).all(1)
    assert torch.equal(blank, (shown == 0).any(1))  # all colours alike
    heights, widths = blank.any(2).sum(1), blank.any(1).sum(1)
    assert torch.equal(blank.sum((1, 2)), heights * widths)  # a rectangle, and nothing else
    assert heights.max() == widths.max() == side
    assert heights.min() == widths.min() == side - side // 2  # at a corner
    lost = sum(range(1, side // 2 + 1)) + sum(range(1, (side + 1) // 2))  # rows beyond the upper and the lower border
    expected = 1 - lost / (9 * side)
    assert heights.float().mean() / side == pytest.approx(expected, abs=0.02)
    assert (blank.float().mean(0) > 0).all()
    untouched = torch.cat([x for x, _ in split.batches(400, train=False)])
    torch.testing.assert_close(untouched, images.float())


def test_cutout_leaves_order_crops_and_flips_as_they_are():
    split = numbered(40, pad=1, flip=True)
    plain = list(split.batches(8, train=True, generator=seeded()))
    cut = list(split.with_cutout(1).batches(8, train=True, generator=seeded()))
    for (x, labels), (cut_x, cut_labels) in zip(plain, cut, strict=True):
        assert torch.equal(labels, cut_labels)
        assert torch.equal(torch.where(cut_x == 0, 0, x), cut_x)
        assert not torch.equal(x, cut_x)
    again = list(split.with_cutout(1).batches(8, train=True, generator=seeded(), start=3))
    assert torch.equal(again[0][0], cut[3][0])
