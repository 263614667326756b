"""Networks are timed a few times only, without pauses: here it does not matter how long they take."""

import pytest

from dgconv.bench import timing
from dgconv.compare import latency


@pytest.fixture(autouse=True, scope="module")
def _timed_in_a_moment():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "SECONDS", 0.0)
        for name in ("PAUSE", "GET_GOING"):
            patch.setattr(timing, name, 0.0)
        yield
