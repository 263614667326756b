"""Shared set-up: trained runs are in trained_runs.py, a browser for pages in browser.py, the paper's MACs in
counted_paper.py."""

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # where the plugins are
pytest_plugins = ["browser", "counted_paper", "trained_runs"]

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported

torch.set_num_threads(1)  # one test process a core

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background; what tests start would be deaf to it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def _inductor_asks_no_compiler() -> Iterator[None]:
    """It would compile a program with all of torch's headers to see whether the compiler knows the CPU's vectors."""
    config = importlib.import_module("torch._inductor.config")
    with config.patch({"cpp.vec_isa_ok": True}):
        yield


@pytest.fixture(scope="session")
def torchvision_models():
    from dgconv.models.others import import_library

    try:
        return import_library("torchvision").models
    except ModuleNotFoundError:
        pytest.skip("torchvision is not installed")


@pytest.fixture(scope="session")
def timm(torchvision_models):
    return pytest.importorskip("timm")
