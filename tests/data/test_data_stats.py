"""Measured statistics, against numpy over all pixels."""

import numpy as np
import torch

from dgconv.data import stats as module
from dgconv.data.stats import measure


def channels(count: int) -> torch.Tensor:
    """Images whose three channels have ranges of their own."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(
        np.stack([rng.integers(0, high, (count, 4, 5), dtype=np.uint8) for high in (50, 150, 250)], axis=1)
    )


def test_measures_each_channel():
    images = channels(20)
    pixels = images.numpy() / 255
    found = measure(images)
    np.testing.assert_allclose(found.mean, pixels.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(found.std, pixels.std((0, 2, 3)), rtol=1e-5)


def test_samples_evenly_when_there_are_many(monkeypatch):
    monkeypatch.setattr(module, "SAMPLE", 10)
    images = channels(25)
    assert measure(images) == measure(images[::3])


def test_a_constant_channel_stays_finite_when_normalized():
    images = torch.full((4, 3, 2, 2), 7, dtype=torch.uint8)
    assert measure(images).normalizer("cpu")(images).abs().max() < 1e-3
