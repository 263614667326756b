"""Feature boosting and suppression, prepared: what an image's losers would have cost is not computed."""

import pytest
import torch
from torch import Tensor, nn

from dgconv import create_model, deploy
from dgconv.deploy.graph import Conv
from dgconv.layers import FeatureBoostingConv2d
from dgconv.ops import native

needs_library = pytest.mark.skipif(not native.available(), reason="the native kernels were not built")

GEOMETRIES = [  # inputs, outputs, kernel, stride, padding, dilation, height, width
    (16, 16, 3, 1, 1, 1, 32, 32),  # Winograd's method: many tiles
    (20, 140, 3, 1, 1, 1, 8, 8),  # few tiles, and more outputs than one item has
    (9, 10, 3, 1, 0, 1, 30, 29),
    (8, 5, 3, 1, 2, 1, 3, 2),
    (8, 7, 3, 1, 1, 1, 1, 1),
    (3, 6, 3, 1, 1, 1, 7, 9),  # direct
    (12, 20, 3, 2, 1, 1, 17, 32),
    (12, 7, 3, 1, 2, 2, 11, 13),
    (13, 9, 1, 1, 0, 1, 5, 7),
    (16, 32, 1, 2, 0, 1, 16, 16),
    (5, 4, 5, 3, "valid", 1, 21, 14),
    (6, 8, 4, 1, "same", 1, 9, 10),
]


def boosting(*arguments, **options) -> FeatureBoostingConv2d:
    """With the numbers of a trained one, so that every part of it counts."""
    layer = FeatureBoostingConv2d(*arguments, **options).eval()
    with torch.no_grad():
        layer.norm.running_mean.normal_()
        layer.norm.running_var.uniform_(0.5, 2)
        layer.generator.weight.normal_()
        layer.shift.normal_()
    return layer


def differences(model: nn.Module, x: Tensor) -> Tensor:
    """Of the prepared model from the original by image, relative to the greatest number if that is
    above 1; and on any threads the same."""
    prepared, before, found = deploy.prepare(model.eval()), torch.get_num_threads(), []
    assert not prepared.report().left
    with torch.no_grad():
        expected = model(x)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(prepared(x))
        torch.set_num_threads(before)
    assert all(torch.equal(result, found[0]) for result in found)
    return (found[0] - expected).abs().flatten(1).amax(1) / expected.abs().max().clamp(min=1)


@pytest.mark.slow
@needs_library
@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("density", [0.001, 0.6, 1.0])
def test_computes_the_same(geometry, density):
    """Alone on inputs of any sign, and behind another one, whose winners are all that it reads."""
    torch.manual_seed(0)
    inputs, outputs, kernel, stride, padding, dilation, *size = geometry
    layer = boosting(inputs, outputs, kernel, stride, padding, dilation, bias=True, density=density)
    chain = nn.Sequential(boosting(inputs, inputs, 3, padding=1, density=density), nn.ReLU(), layer, nn.ReLU6())
    for batch in (1, 7):
        x = torch.randn(batch, inputs, *size)
        assert differences(layer, x).max() < 1e-4
        assert differences(chain, x).median() < 1e-4  # a saliency near the border may turn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv1, self.conv2 = nn.BatchNorm2d(8), boosting(8, 12, 3, padding=1), boosting(12, 8, 1)
        self.conv3, self.last_norm = boosting(8, 8, 3, padding=1, density=0.3), nn.BatchNorm2d(8)
        for norm in (self.norm, self.last_norm):
            nn.init.normal_(norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(x))
        x = torch.relu(self.conv2(self.conv1(x)) + x)
        return self.last_norm(self.conv3(x))


@pytest.mark.usefixtures("engine")
def test_additions_and_norms():
    """A norm behind it shifts the losers, too, and so does a residual: then the next layer has to read them."""
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(5, 8, 14, 11)
    prepared = deploy.prepare(model)
    torch.testing.assert_close(prepared(x), model(x), rtol=1e-4, atol=1e-4)
    if native.available():
        steps = prepared._whole._layout(1, 8, 14, 11).steps
        assert [bool(step.conv.dynamic) for step in steps if step.conv.beta] == [False, True, False]


@needs_library
def test_sums_are_taken_over_only_where_nothing_is_negative():
    """The gate pools magnitudes; what a convolution leaves are sums."""
    torch.manual_seed(0)
    for between in (nn.ReLU(), nn.Identity()):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), between, boosting(8, 12, 3, density=0.5)).eval()
        assert differences(model, torch.randn(3, 3, 12, 12)).max() < 1e-4
        *_, last = deploy.prepare(model)._whole._layout(1, 3, 12, 12).steps
        assert (last.input_sums >= 0) == isinstance(between, nn.ReLU)


@pytest.mark.usefixtures("engine")
def test_zeros_among_zeros_win_by_index():
    layer = boosting(8, 10, 3, padding=1, density=0.3)
    with torch.no_grad():
        layer.generator.weight.zero_()
        layer.generator.bias.fill_(-1)
    out = deploy.prepare(layer)(torch.randn(2, 8, 6, 6))
    torch.testing.assert_close(out[:, :3], layer.shift[:3, None, None].expand(2, 3, 6, 6), rtol=0, atol=0)
    assert (out[:, 3:] == 0).all()


@needs_library
def test_nothing_is_read_before_it_is_written(budget):
    torch.manual_seed(0)
    x = torch.randn(3, 3, 20, 20)
    program = deploy.prepare(create_model("resnet20_fbs", density=0.4).eval())._whole
    expected = program(x)
    (arena,) = budget._free.values()
    arena.fill_(torch.nan)
    assert torch.equal(program(x), expected)


def test_from_disk(tmp_path):
    layer, x = boosting(8, 10, 3, density=0.3), torch.randn(2, 8, 6, 6)
    prepared = deploy.prepare(layer)
    deploy.save(prepared, tmp_path)
    assert torch.equal(deploy.load(tmp_path)(x), prepared(x))


def test_the_gate_counts_as_it_is():
    """A layer that still keeps all of its outputs, and the same some epochs later."""
    layer, x = boosting(8, 10, 3, density=0.3), torch.randn(2, 8, 6, 6)
    for keep in (10, 6):
        layer.keep_only(keep)
        prepared = deploy.prepare(layer)
        (step,) = prepared.graph.steps
        assert isinstance(step, Conv)
        assert step.boost.keep == keep
        torch.testing.assert_close(prepared(x), layer(x), rtol=1e-4, atol=1e-4)


def test_what_is_left_to_torch():
    x = torch.randn(2, 8, 6, 6)
    for options, reason in (({"groups": 2}, "several groups"), ({}, "padding_mode 'reflect'")):
        layer = boosting(8, 10, 3, padding=1, **options)
        if not options:
            layer.padding_mode = "reflect"
        prepared = deploy.prepare(layer)
        assert [reason in row.reason for row in prepared.report().left] == [True]
        torch.testing.assert_close(prepared(x), layer(x))
