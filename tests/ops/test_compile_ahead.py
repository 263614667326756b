"""Kernels compiled side by side before they are used, and compiled at all, where there is no GPU to run them on."""

import os
import re
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu(tmp_path):
    """Without one. The interpreter in which they are tested here accepts what the compiler refuses."""
    triton = pytest.importorskip("triton")
    if not (Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas").exists():
        pytest.skip("Triton came without the assembler for NVIDIA GPUs")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("compile_for_gpu.py")],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    count, left_out = re.fullmatch(r"(\d+) kernels; ?(.*)\n", done.stdout).groups()
    assert int(count) >= 25
    assert not left_out, "launch them in compile_for_gpu.py, too"
