"""What a start costs: compiling is timed, told once and written down."""

import json
import shutil

import pytest
import torch
from torch import nn

from dgconv.cli import main
from dgconv.train import Recipe, train
from dgconv.train.beginning import memory_format_of

SMALL = {"stages": (1,), "growth": (4,), "image_size": 8, "batch_size": 256}


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Listener:
    """Notes what a display would be told about starts."""

    def __init__(self):
        self.starts = []

    def start(self, index, name, steps, done): ...

    def first_step(self, index, seconds, compiled):
        self.starts.append((index, seconds, compiled))

    def step(self, index, epoch, done, loss): ...

    def epoch(self, index, metrics): ...


@pytest.mark.parametrize(
    ("layer", "is_broken"),
    [
        (nn.Conv2d(3, 48, 1, 2), True),
        (nn.Conv2d(24, 48, 1, 2, groups=8), True),
        (nn.Conv2d(3, 48, 1), False),
        (nn.Conv2d(3, 48, 3, 2), False),
        (nn.Conv2d(16, 48, 1, 2), False),
    ],
)
def test_what_torch_breaks_with_channels_last_is_trained_without(layer, is_broken):
    """Else it writes beyond its memory, and the process dies some time later."""
    found = memory_format_of(nn.Sequential(nn.ReLU(), layer), torch.device("cpu"), torch.bfloat16)
    assert found == (torch.contiguous_format if is_broken else torch.channels_last)


def test_the_first_step_is_timed_once(tmp_path):
    listener = Listener()
    train(Recipe.of(**SMALL, epochs=3), tmp_path / "run", watcher=listener)
    [(index, seconds, compiled)] = listener.starts
    assert (index, compiled) == (0, False)
    first, second, third = metrics_of(tmp_path / "run")
    assert first["first_step_seconds"] == seconds
    assert 0 < seconds < first["seconds"]
    assert second["first_step_seconds"] is None
    assert third["first_step_seconds"] is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiling_is_told(tmp_path, capsys):
    small = ["--stages", "1", "--growth", "4", "--image-size", "8", "--batch-size", "256", "--epochs", "2"]
    main(["train", *small, "--compile", "--out", str(tmp_path / "compiled")])
    told = capsys.readouterr().out
    first, second = metrics_of(tmp_path / "compiled")
    assert f"compiled in {first['first_step_seconds']:.1f} s, the first step included" in told
    main(["train", *small, "--out", str(tmp_path / "eager")])
    assert "compiled" not in capsys.readouterr().out
    eager, eager_second = metrics_of(tmp_path / "eager")
    assert first["first_step_seconds"] > eager["first_step_seconds"]
    assert second["train_loss"] == pytest.approx(eager_second["train_loss"], rel=1e-2), "the same training"
