"""A tuning that is killed at random moments and resumed: is the network the same to the bit?

    python benchmarks/killed_tuning.py [--kills 10] [--seed 0] [--work DIR]

A small network learns the digits in a process of its own, which gets SIGKILL after a random time, again and again, and
goes on each time. Its weights are compared with those of a tuning that was left alone.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import tyro

from dgconv.runs.tensors import read_tensors

CODE = """
from torch import nn

def small(num_classes=10):
    def conv(channels, out, stride):
        return nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())

    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes)
    return nn.Sequential(conv(3, 32, 1), conv(32, 64, 2), conv(64, 64, 1), *head)
"""


def main(kills: int = 10, seed: int = 0, epochs: int = 12, work: Path = Path("build/killed_tuning")) -> None:
    """Tune once undisturbed and once killed; compare."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "net.py").write_text(CODE)
    network = f"{work / 'net.py'}:small"
    settings = ["--data", "digits", "--image-size", "16", "--epochs", str(epochs), "--time", "60"]
    whole, killed = work / "whole", work / "killed"
    begin = time.monotonic()
    start(network, *settings, "--out", str(whole)).wait()
    took = time.monotonic() - begin
    draw = random.Random(seed)
    same = [*settings, "--plan", str(whole / "plan.json"), "--out", str(killed)]
    done, finished = 0, False
    while done < kills:
        begun = (killed / "tune.json").exists()
        process = start(network, *(["--resume", str(killed)] if begun else same))
        moment = draw.uniform(0, took * (0.2 + 1.0 / kills))
        try:
            process.wait(moment)
            finished = True
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1
            print(f"kill {done} after {moment:.1f} s", flush=True)
            if not (killed / "tune.json").exists() and killed.exists():
                for entry in killed.iterdir():
                    print(f"left before it began: {entry}")
    if not finished:
        start(network, *(["--resume", str(killed)] if (killed / "tune.json").exists() else same)).wait()
    expected, got = (read_tensors(folder / "model.safetensors").tensors for folder in (whole, killed))
    equal = expected.keys() == got.keys() and all(torch.equal(expected[name], got[name]) for name in expected)
    print(f"{done} kills; {len(expected)} tensors, {'all' if equal else 'NOT all'} the same to the bit")
    sys.exit(not equal)


def start(network: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dgconv", "tune", network, *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    tyro.cli(main)
