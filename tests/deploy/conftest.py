import pytest

from dgconv.ops import native


@pytest.fixture(params=["native", "torch"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with the native kernels, and again as where there are none."""
    if request.param == "torch":
        monkeypatch.setattr(native, "available", lambda: False)
        monkeypatch.setattr(native, "library", lambda: None)
    elif not native.available():
        pytest.skip("no native kernels")
    return request.param
