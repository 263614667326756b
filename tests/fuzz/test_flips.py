"""A bit that is wrong in stored weights, wherever it is, is noticed."""

from pathlib import Path
from random import Random

import pytest
from torch import nn

from dgconv import convert_, deploy
from dgconv.deploy.storage import from_bytes, to_bytes
from dgconv.errors import UserError
from dgconv.runs.tensors import read_tensors
from tests.fuzz.tensors import TensorTexts, forged

FLIPS = 1000


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(8 * 36, 5))


@pytest.mark.slow
def test_of_prepared_networks() -> None:
    model = network()
    convert_(model)
    graph, weights = to_bytes(deploy.prepare(model.eval()))
    rng = Random(0)
    for _ in range(FLIPS):
        with pytest.raises(UserError):
            from_bytes(graph, forged(weights, rng))
    from_bytes(graph, weights)


@pytest.mark.slow
def test_of_run_folders(tmp_path: Path) -> None:
    content = TensorTexts(network().state_dict(), {}).to_bytes()
    file, rng = tmp_path / "model.safetensors", Random(0)
    for _ in range(FLIPS):
        file.write_bytes(forged(content, rng))
        with pytest.raises((ValueError, OSError)):
            read_tensors(file)
    file.write_bytes(content)
    read_tensors(file)
