"""The error on a split, counted again by hand."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dgconv.data import load_data
from dgconv.train import evaluate


@pytest.fixture(scope="module")
def digits():
    return load_data("digits", image_size=8)


class Pixels(nn.Module):
    """Its logits are pixels of the image."""

    def forward(self, x):
        return x.flatten(1)[:, 20:30]


class Overflowing(nn.Module):
    """Its first logit is no number."""

    def forward(self, x):
        return Pixels()(x).index_fill(1, torch.tensor(0), math.nan)


def test_errors_and_loss(digits):
    found = evaluate(Pixels(), digits.test, batch_size=100)
    (x, target), *rest = digits.test.batches(1000, train=False)
    assert not rest
    logits = Pixels()(x)
    place = (logits > logits.gather(1, target[:, None])).sum(1)  # of the right class
    assert found.images == len(target)
    assert found.loss == pytest.approx(cross_entropy(logits, target).item())
    assert found.error == pytest.approx(100 * (logits.argmax(1) != target).float().mean().item())
    assert 100 * (place >= 5).float().mean() <= found.error_top5 + 1e-4 < found.error
    assert found.pruned_share is None


def test_images_that_overflow_are_wrong(digits):
    found = evaluate(Overflowing(), digits.test)
    assert (found.error, found.error_top5) == (100, 100)
    assert math.isnan(found.loss)
