"""How much faster networks are trained side by side on one GPU, and which kernels a training step spends its time in.

    python benchmarks/side_by_side.py [--recipes cifar10_condensenet50_dgc] [--counts 1 2 4] [--kernels] [--json FILE]

The whole step of ``dgconv train`` in bfloat16, captured as it is there, on images of noise: each network on a stream of
its own, a step of each in turn. Loading data and evaluating are left out.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from dgconv.data import Data, TensorSplit
from dgconv.data.stats import CIFAR10
from dgconv.environment import describe_environment
from dgconv.train.engine import SIDE_BY_SIDE, prepare_device
from dgconv.train.recipe_files import load_recipe
from dgconv.train.run import Run

ROUNDS = 60
CUDA = torch.autograd.DeviceType.CUDA


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recipes = ["cifar10_condensenet50_dgc", "cifar10_condensenet86_dgc"]
    parser.add_argument("--recipes", nargs="+", default=recipes, metavar="RECIPE", help="for CIFAR-10")
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2, 3, 4, SIDE_BY_SIDE], metavar="N")
    parser.add_argument("--kernels", action="store_true", help="print the kernels of a step of one network")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures a GPU, and torch sees none")
    device = torch.device("cuda")
    prepare_device(device)
    rows = []
    for recipe in args.recipes:
        with tempfile.TemporaryDirectory() as folder:
            runs = [captured(recipe, device, Path(folder)) for _ in range(max(args.counts))]
        alone = None
        for count in args.counts:
            step = seconds_of_a_round(runs[:count]) / count
            alone = alone or step
            rows.append({"recipe": recipe, "side_by_side": count, "seconds_a_step": step})
            print(f"{recipe}: {count} at a time, {1e3 * step:.3f} ms a step of each, {alone / step:.2f}x", flush=True)
        if args.kernels:
            print_kernels(runs[0])
    if args.json:
        args.json.write_text(json.dumps(describe_environment(device) | {"rows": rows}, indent=2) + "\n")


def captured(recipe: str, device: torch.device, folder: Path) -> Run:
    """A network in the middle of its training, its step a graph."""
    images, labels = torch.randint(256, (512, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (512,))
    split = TensorSplit(images, labels, CIFAR10, pad=4, flip=True)
    data = Data("cifar10", split, split, [str(n) for n in range(10)], (3, 32, 32), CIFAR10.mean, CIFAR10.std)
    run = Run(load_recipe(recipe).changed(precision="bfloat16"), folder, data.to(device), device)
    run.model.train()
    run._schedule(0.5)
    run._step(*next(iter(run.data.train.batches(run.recipe.training.batch_size, train=True, device=device))))
    return run


def seconds_of_a_round(runs: list[Run]) -> float:
    """A step of each."""
    streams = [torch.cuda.Stream() for _ in runs]

    def play(rounds: int) -> None:
        for _ in range(rounds):
            for run, stream in zip(runs, streams, strict=True):
                with torch.cuda.stream(stream):
                    run.captured.graph.replay()
        torch.cuda.synchronize()

    play(ROUNDS // 6)
    started = time.perf_counter()
    play(ROUNDS)
    return (time.perf_counter() - started) / ROUNDS


def print_kernels(run: Run) -> None:
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run.captured.graph.replay()
        torch.cuda.synchronize()
    microseconds: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for event in profile.events():
        if event.device_type == CUDA:
            microseconds[event.name] += event.time_range.elapsed_us()
            launches[event.name] += 1
    print(f"{sum(launches.values())} launches, {microseconds.total():.0f} us in all", file=sys.stderr)
    for name, spent in microseconds.most_common(25):
        print(f"{spent:8.0f} us {launches[name]:5} x {spent / launches[name]:7.1f}  {name[:80]}", file=sys.stderr)


if __name__ == "__main__":
    main()
