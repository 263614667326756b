"""The error on a split, counted again by hand."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dgconv import DynamicGroupConv2d
from dgconv.data import load_data
from dgconv.errors import UserError
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
    assert len(found.overflowing) == found.images
    assert math.isnan(found.loss)


class SomeOverflow(nn.Module):
    """Dynamic, and without a finite logit for bright images."""

    def __init__(self, limit):
        super().__init__()
        self.layer, self.limit = DynamicGroupConv2d(3, 4, 3, heads=2), limit

    def forward(self, x):
        bright = x.mean((1, 2, 3), keepdim=True) > self.limit
        return self.layer(torch.where(bright, math.inf, x)).flatten(1)[:, :10] * 0 + Pixels()(x)


def test_images_that_overflow_are_counted_and_named(digits, caplog):
    (x, target), *_ = digits.test.batches(1000, train=False)
    brightness = x.mean((1, 2, 3))
    limit = brightness.sort().values[-12]
    expected = (brightness > limit).nonzero().flatten().tolist()
    found = evaluate(SomeOverflow(limit), digits.test, batch_size=100)
    assert 0 < len(expected) < 12
    assert list(found.overflowing) == expected
    others = [i for i in range(len(target)) if i not in expected]
    assert found.loss == pytest.approx(cross_entropy(Pixels()(x[others]), target[others]).item())
    assert f"{len(expected)} of {len(target)} images overflow (number {expected[0]}," in caplog.text
    assert "`saliency_start`" in caplog.text
    assert evaluate(SomeOverflow(1e9), digits.test).overflow is None


def test_a_split_is_asked_for(digits):
    with pytest.raises(UserError, match=r"got all of it: give data\.test"):
        evaluate(Pixels(), digits)
    with pytest.raises(UserError, match=r"expected a split of a data set, .* got a list"):
        evaluate(Pixels(), [])
