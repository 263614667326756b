"""``python -m tests.fuzz.soak --minutes 10``: many threads, images of many sizes, and one budget of memory.

Every result is compared, bit by bit, with the one that a single thread computed before. What the process takes beside
its weights and images must stay within the budget.
"""

import argparse
import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from dgconv import convert_, deploy
from dgconv.deploy.run.budget import BUDGET, VARIABLE, bytes_of
from dgconv.environment import describe_environment

RECORD = Path(__file__).with_name("soak.json")
SMALLEST, LARGEST = 64, 1024  # pixels a side


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--sizes", type=int, default=64)
    parser.add_argument("--largest", type=int, default=LARGEST, help="pixels a side")
    parser.add_argument("--budget", default="1G", help=f"what {VARIABLE} is set to")
    parser.add_argument("--record", action="store_true", help=f"write what was measured to {RECORD.name}")
    given = parser.parse_args(arguments)
    os.environ[VARIABLE] = given.budget
    found = soak(given.minutes, given.threads, given.sizes, given.largest)
    print(json.dumps(found, indent=1))
    if given.record:
        RECORD.write_text(json.dumps(describe_environment("cpu") | found, indent=1) + "\n")
    return int(found["wrong"] > 0 or max(found["taken"], found["peak"]) > found["budget"])


@torch.no_grad()
def soak(minutes: float, threads: int, sizes: int, largest: int = LARGEST) -> dict[str, float | int]:
    """Counts, and bytes: ``peak`` of what was counted in the budget, ``taken`` of what the system says."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = deploy.prepare(_network())
    sides = [SMALLEST + (largest - SMALLEST) * index // max(1, sizes - 1) for index in range(sizes)]
    images = [torch.randn(1, 3, side, side) for side in sides]
    model(images[0])
    before = _resident()
    expected = [model(image) for image in images]
    calls, wrong = [0] * threads, [0] * threads
    end = time.monotonic() + 60 * minutes

    def work(number: int) -> None:
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        rng = random.Random(number)
        while time.monotonic() < end:
            index = rng.randrange(sizes)
            wrong[number] += not torch.equal(model(images[index]), expected[index])
            calls[number] += 1

    workers = [threading.Thread(target=work, args=[number]) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {
        "minutes": minutes,
        "threads": threads,
        "sizes": len(set(sides)),
        "calls": sum(calls),
        "wrong": sum(wrong),
        "budget": bytes_of(os.environ[VARIABLE]),
        "peak": BUDGET.use.peak,
        "taken": _resident() - before,
    }


def _network() -> nn.Module:
    """Small in weights; its values are what takes memory."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
    convert_(model)
    return model.eval()


def _resident() -> int:
    """Bytes that the process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.exit(main())
