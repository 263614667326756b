"""Cropping and mirroring a batch, against doing it one image at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgconv.data.tensor_split import cut_out, mirror, shift


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.integers(3, 6), st.integers(3, 6), st.integers(0, 2**32 - 1))
def test_shift_takes_each_images_own_window(count, pad, height, width, seed):
    g = torch.Generator().manual_seed(seed)
    images = torch.randint(1, 256, (count, 3, height, width), generator=g, dtype=torch.uint8)
    rows, columns = torch.randint(2 * pad + 1, (2, count), generator=g)
    shifted = shift(images, pad, rows, columns)
    for image, row, column, got in zip(images, rows, columns, shifted, strict=True):
        padded = torch.zeros(3, height + 2 * pad, width + 2 * pad, dtype=torch.uint8)
        padded[:, pad : pad + height, pad : pad + width] = image
        assert torch.equal(got, padded[:, row : row + height, column : column + width])


def test_shift_by_pad_changes_nothing():
    images = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    centre = torch.full((5,), 4)
    assert torch.equal(shift(images, 4, centre, centre), images)


@pytest.mark.parametrize("chosen", [[True, False, True], [False] * 3, [True] * 3])
def test_mirror_flips_the_chosen_left_to_right(chosen):
    images = torch.arange(3 * 3 * 2 * 4).view(3, 3, 2, 4)
    for image, flipped, got in zip(images, chosen, mirror(images, torch.tensor(chosen)), strict=True):
        assert torch.equal(got, image[:, :, [3, 2, 1, 0]] if flipped else image)


@pytest.mark.parametrize(("side", "before"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_cut_out_blanks_each_images_own_square(side, before):
    images = torch.ones(2, 3, 8, 9)
    cut = cut_out(images, side, torch.tensor([4, 0]), torch.tensor([5, 8]))
    expected = images.clone()
    expected[0, :, 4 - before : 4 - before + side, 5 - before : 5 - before + side] = 0
    expected[1, :, : side - before, 8 - before :] = 0  # a part of it falls outside
    assert torch.equal(cut, expected)
