"""A few images that stand for all, though the split is sorted by class."""

import torch

from dgconv.analysis.summary import MEASURED_IMAGES, images_to_measure
from dgconv.data import Data, TensorSplit, load_data
from dgconv.data.sample import sample
from dgconv.data.stats import Stats
from dgconv.models import create_model


def test_every_nth_image_in_batches_or_at_once():
    split = load_data("digits").test
    every_fourth = torch.cat([x for x, _ in split.batches(360, train=False)])[::4]
    batches = list(sample(split, 100, batch_size=7))
    assert {len(batch) for batch in batches[:-1]} == {7}
    torch.testing.assert_close(torch.cat(batches), every_fourth, rtol=0, atol=0)
    [at_once] = sample(split, 100)
    torch.testing.assert_close(at_once, every_fourth, rtol=0, atol=0)
    assert len(next(sample(split, 1000))) == 360


def test_what_depends_on_the_image_is_measured_on_all_classes():
    """Ten of them, each as one grey, one behind the other as in a folder."""
    labels = torch.arange(10).repeat_interleave(3 * MEASURED_IMAGES)
    greys = (20 * labels).to(torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8).contiguous()
    split = TensorSplit(greys, labels, Stats((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), pad=0, flip=False)
    data = Data("greys", split, split, list("abcdefghij"), (3, 8, 8), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    images = images_to_measure(create_model("condensenet20_dgcg"), data)
    assert len(images) == MEASURED_IMAGES
    assert len(images.flatten(1).mean(1).unique()) == 10
