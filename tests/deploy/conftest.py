from collections.abc import Iterator

import pytest

from dgconv.deploy.run import budget as budget_module
from dgconv.deploy.run import layout, program
from dgconv.deploy.run.budget import Budget
from dgconv.ops import native


@pytest.fixture(params=native.FLOAT_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with each instruction set of this CPU."""
    before = native.isa()
    if not native.available() or not native.library().dgconv_select_isa(request.param.encode()):
        pytest.skip(f"this CPU lacks {request.param}, or there are no native kernels")
    yield request.param
    native.library().dgconv_select_isa(before.encode())


@pytest.fixture(params=["native", "torch"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with the native kernels, and again as where there are none."""
    if request.param == "torch":
        monkeypatch.setattr(native, "_find", lambda: "the native kernels are not in use: they were taken away")
    elif not native.available():
        pytest.skip("no native kernels")
    return request.param


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Budget:
    """Memory that nobody else has a part of: of 1 GiB, until a test says otherwise."""
    own = Budget(1 << 30)
    for module in (budget_module, layout, program):
        monkeypatch.setattr(module, "BUDGET", own)
    return own
