"""The layers in torch's own tools for functions and graphs: ``torch.func`` and ``torch.fx``."""

import textwrap

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import dgconv.layers
from dgconv import DynamicGroupConv2d, create_model


def dynamic(kernel, gate):
    torch.manual_seed(0)
    layer = DynamicGroupConv2d(8, 12, kernel, stride=2, padding=kernel // 2, gate=gate, bias=True)
    nn.init.normal_(layer.generator.bias)  # a choice that differs between images
    if gate == "global":
        layer.gate.threshold.fill_(0.5)
    return layer, torch.randn(3, 8, 6, 6)


@pytest.mark.parametrize("gate", ["head", "global"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_gradients_by_torch_func(kernel, gate):
    layer, x = dynamic(kernel, gate)

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    parameters = dict(layer.named_parameters())
    expected = dict(zip(parameters, torch.autograd.grad(loss(parameters, x), parameters.values()), strict=True))
    torch.testing.assert_close(torch.func.grad(loss)(parameters, x), expected)
    of_each_image = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    torch.testing.assert_close({name: grads.sum(0) for name, grads in of_each_image.items()}, expected)


def test_second_gradients_by_torch_func():
    layer, x = dynamic(3, "head")
    layer.double().eval()
    x, direction, step = x.double(), torch.randn_like(x, dtype=torch.float64), 1e-6
    gradient = torch.func.grad(lambda x: layer(x).square().sum())
    _, along = torch.func.jvp(gradient, (x,), (direction,))
    difference = gradient(x + step * direction) - gradient(x - step * direction)
    torch.testing.assert_close(along, difference / (2 * step), rtol=1e-4, atol=1e-4)


def test_forward_mode():
    layer, x = dynamic(3, "head")
    direction = torch.randn_like(x)
    with forward_ad.dual_level():
        along = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, direction))).tangent
    torch.testing.assert_close(along, torch.func.jvp(layer, (x,), (direction,))[1])


@pytest.mark.parametrize("name", ["condensenet20_dgc", "mobilenetv2_dgcg", "resnet20_fbs", "resnet20_flgc"])
def test_fx_traces_networks_by_the_recipe_in_the_documentation(name):
    small = {"stages": (1, 1), "growth": (4, 4)} if "condense" in name else {}
    model = create_model(name, num_classes=4, **small).eval()
    recipe = textwrap.dedent(dgconv.layers.__doc__.partition("::")[2])
    names = {"torch": torch, "model": model}
    exec(recipe, names)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(names["traced"](x), model(x))


@pytest.mark.parametrize("method", ["sgc", "lgc", "cgnet", "lccn"])
def test_fx_follows_the_code_of_layers_that_do_not_branch(method):
    model = create_model(f"resnet20_{method}", width=8).eval()
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x))
