"""Every rival that is installed computes what torch does, in each of its precisions."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from dgconv.bench.forms import AGREE
from dgconv.bench.runtimes import RUNTIMES, Source
from dgconv.deploy.export.outputs import difference
from dgconv.errors import UserError


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Source:
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    model = nn.Sequential(
        *stem, nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)
    )
    return Source(model.eval(), (3, 10, 12), torch.randn(8, 3, 10, 12), tmp_path_factory.mktemp("runtimes"))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda one: f"{one.name} {one.precision}")
def test_it_computes_what_torch_does(runtime, source, capfd):
    for package in (*runtime.packages, "onnxscript"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    make = runtime.get_ready(source)
    for batch, threads in ((1, 1), (3, 2)):
        images = torch.randn(batch, *source.input_size)
        call = make(threads, images)
        before = images.clone()
        first, again = call(), call()
        expected = source.model(images).detach()
        gap = difference(first, expected)
        assert gap <= AGREE[runtime.precision]
        assert (gap > 1e-5) == (runtime.precision == "int8"), "rounded to 8 bits, or not at all"
        assert torch.equal(first[0], again[0])
        assert torch.equal(images, before)
    assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_ncnn_refuses_what_it_lacks(tmp_path):
    pytest.importorskip("ncnn")
    pytest.importorskip("pnnx")

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.svdvals(x)

    runtime = next(one for one in RUNTIMES if one.name == "ncnn")
    source = Source(Odd(), (3, 4, 4), torch.zeros(1, 3, 4, 4), tmp_path)
    with pytest.raises(UserError, match=r"pnnx cannot convert the network|operations that ncnn lacks"):
        runtime.get_ready(source)(1, torch.zeros(1, 3, 4, 4))
