"""What every layer takes: what nn.Conv2d takes. The rest is refused with words that say what was expected."""

import warnings

import pytest
import torch
from torch import nn

from dgconv.errors import UserError
from dgconv.layers import (
    ChannelGatingConv2d,
    DynamicGroupConv2d,
    FeatureBoostingConv2d,
    FullyLearnableGroupConv2d,
    LearnedGroupConv2d,
    LowCostCollaborativeConv2d,
    StandardGroupConv2d,
)
from dgconv.layers.fusible import GroupedConv2d
from dgconv.layers.indexed import IndexedLinear


def condensed(*args, **options):
    layer = LearnedGroupConv2d(*args, **options)
    layer.before_step(1)
    return layer.to_static()


LAYERS = {
    "conv": nn.Conv2d,  # what the others are held against
    "dgc": DynamicGroupConv2d,
    "dgcg": lambda *args, **options: DynamicGroupConv2d(*args, gate="global", **options),
    "sgc": StandardGroupConv2d,
    "lgc": LearnedGroupConv2d,
    "lgc static": condensed,
    "flgc": FullyLearnableGroupConv2d,
    "flgc static": lambda *args, **options: FullyLearnableGroupConv2d(*args, **options).to_static(),
    "fbs": FeatureBoostingConv2d,
    "cgnet": ChannelGatingConv2d,
    "cgnet blocks": lambda *args, **options: ChannelGatingConv2d(*args, base="blocks", **options),
    "lccn": LowCostCollaborativeConv2d,
    "grouped": GroupedConv2d,
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param](8, 12, 3, padding=1)


def test_one_image_without_a_batch(layer):
    x = torch.randn(8, 6, 5, requires_grad=True)
    layer(x).square().sum().backward()
    assert x.grad.shape == x.shape
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x[None])[0])


def test_an_empty_batch(layer):
    out = layer(torch.randn(0, 8, 6, 5))
    assert out.shape == (0, 12, 6, 5)
    out.sum().backward()
    assert layer.eval()(torch.randn(0, 8, 6, 5)).shape == (0, 12, 6, 5)
    assert layer(torch.randn(2, 8, 6, 5)).isfinite().all(), "it took no statistics of nothing"


@pytest.mark.parametrize("shape", [(2, 7, 6, 5), (2, 9, 6, 5), (7, 6, 5), (9, 6, 5)])
def test_the_wrong_number_of_channels(layer, shape):
    expected = (
        rf"(expected an input \[batch, 8, height, width\].*got \[{shape[0]}|to have 8 channels, but got {shape[-3]})"
    )
    with pytest.raises((UserError, RuntimeError), match=expected):
        layer(torch.randn(shape))


@pytest.mark.parametrize("shape", [(8, 6), (1, 2, 8, 6, 5)])
def test_neither_a_batch_nor_an_image(layer, shape):
    with pytest.raises((UserError, RuntimeError), match=r"(\[batch, 8, height, width\]|3D \(unbatched\) or 4D)"):
        layer(torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_the_wrong_dtype(layer, dtype):
    with pytest.raises((UserError, RuntimeError), match=r"(one dtype|should be the same|expected scalar type)"):
        layer(torch.ones(2, 8, 6, 5, dtype=dtype))


def test_images_without_pixels(layer):
    with pytest.raises((UserError, RuntimeError), match=r"(no pixels|greater than actual input size)"):
        layer(torch.zeros(2, 8, 0, 5))


def test_the_wrong_number_of_features():
    layer = IndexedLinear(nn.Linear(8, 3), torch.tensor([1, 5]))
    with pytest.raises(UserError, match=r"expected an input \[..., 8\], got \[2, 9\]"):
        layer(torch.randn(2, 9))


@pytest.mark.parametrize("number", [-1, 8, 2**40])
def test_a_state_that_names_a_channel_which_is_not_there(number):
    linear = IndexedLinear(nn.Linear(8, 4), torch.tensor([1, 5]))
    for layer in (condensed(8, 12, 1), linear, LAYERS["flgc static"](8, 12, 1)):
        state = layer.state_dict()
        name = next(name for name in state if name.startswith(("index", "inputs")))
        wrong = state[name].clone().index_fill_(0, torch.tensor(0), number)
        with pytest.raises(RuntimeError, match=f"{name} must be from 0 to 7, got {number}"):
            layer.load_state_dict(state | {name: wrong})
        layer.load_state_dict(state)


SPECIAL = {
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x[0, 0].to_sparse_csr(),
    "mkldnn": lambda x: x.to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_tensor_that_is_no_plain_array_of_numbers(layer, kind):
    if isinstance(layer, nn.Conv2d):
        pytest.skip("torch takes some, and refuses the others itself")
    with warnings.catch_warnings(action="ignore"):
        x = SPECIAL[kind](torch.randn(2, 8, 6, 5))
    with pytest.raises(UserError, match=r"expected a dense tensor of numbers, got .*\.to_dense\(\)"):
        layer(x)
