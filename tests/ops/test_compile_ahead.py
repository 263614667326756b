"""Kernels compiled side by side before they are used."""

import pytest
import torch

from dgconv import DynamicGroupConv2d
from dgconv.ops.compile_ahead import compiling_ahead


@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels are compiled for a GPU, and there is none")
def test_kernels_compiled_ahead_give_what_they_should():
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run
    layer = DynamicGroupConv2d(24, 8, 1).cuda()
    x = torch.randn(5, 24, 6, 6, device="cuda")
    with compiling_ahead(x.device):
        layer(x).sum().backward()  # forward and backward pass, each in its thread
        assert JITFunction.run is not launch
    assert JITFunction.run is launch
    out = layer(x)
    saliency = layer.generator(x)
    torch.testing.assert_close(out, layer._convolve(x, layer.gate(saliency)), rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a CPU there is nothing to compile")
def test_without_a_gpu_the_function_just_runs(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with compiling_ahead(torch.device("cpu")):
        total = torch.ones(3).sum()
    assert total == 3
