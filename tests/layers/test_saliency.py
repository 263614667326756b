"""The saliency generator."""

import pytest
import torch

from dgconv.errors import UserError
from dgconv.layers import DynamicGroupConv2d, SaliencyGenerator
from dgconv.layers.saliency import hidden_width, passing_overflow


@pytest.mark.parametrize(
    ("channels", "squeeze", "halve", "width"),
    [
        (16, 16, True, 2),
        (79, 16, True, 9),
        (80, 16, True, 5),
        (16, 16, False, 1),
        (3, 16, True, 1),
        (512, 16, True, 32),
        (16, 1, True, 16),  # nothing left to halve
    ],
)
def test_hidden_width(channels, squeeze, halve, width):
    assert hidden_width(channels, squeeze, halve) == width


def test_equation():
    generator = SaliencyGenerator(12, heads=3, squeeze=4, halve_squeeze=False)
    x = torch.randn(5, 12, 4, 6)
    saliency = generator(x)
    for image in range(5):
        for head in range(3):
            hidden = (generator.weight1[head] @ x[image].mean((1, 2))).relu()
            expected = (generator.weight2[head] @ hidden + generator.bias[head]).relu()
            torch.testing.assert_close(saliency[image, head], expected)


def test_half_precision_is_pooled_in_full():
    generator, x = SaliencyGenerator(12, heads=3), torch.randn(5, 12, 4, 6).bfloat16()
    torch.testing.assert_close(generator(x), generator(x.float()), rtol=0, atol=1e-6)


def test_signed_leaves_out_the_last_relu():
    torch.manual_seed(0)
    generator = SaliencyGenerator(32, heads=2, signed=True)
    x = 5 * torch.randn(8, 32, 3, 3)
    signed = generator(x)
    assert (signed < 0).any()
    generator.signed = False
    torch.testing.assert_close(generator(x), signed.relu())


def test_ones_for_any_image():
    generator = SaliencyGenerator(12, heads=3)
    torch.nn.init.normal_(generator.bias)  # as training leaves it
    generator.reset_to_ones()
    assert (generator(torch.randn(4, 12, 3, 3)) == 1).all()


def test_starts_with_unit_bias_and_kaiming_scale():
    generator = SaliencyGenerator(640, heads=4)
    assert (generator.bias == 1).all()
    assert generator.weight1.std().item() == pytest.approx((2 / 640) ** 0.5, rel=0.05)
    assert generator.weight2.std().item() == pytest.approx((2 / 40) ** 0.5, rel=0.05)


@pytest.mark.parametrize("gate", ["head", "global"])
def test_an_image_that_overflows_leaves_the_others_alone(gate):
    layer = DynamicGroupConv2d(8, 8, 3, heads=2, gate=gate).eval()
    x = torch.randn(3, 8, 5, 5)
    expected = layer(x)
    x[1] *= torch.inf
    with pytest.raises(UserError, match="in image 1 of the batch"):
        layer(x)
    with passing_overflow():
        out = layer(x)
    assert not out[1].isfinite().any()
    torch.testing.assert_close(out[[0, 2]], expected[[0, 2]])
    with pytest.raises(UserError):
        layer(x)
