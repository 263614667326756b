"""Tiles (AMX) against vectors (VBMI2) in int8: the same bits? And how long do a ResNet-18 and each of its steps take?

    PYTHONPATH=src python benchmarks/tiles.py [--build] [--networks 300] [--json FILE]

Needs a CPU with AMX. `--build` compiles the library with g++ into build/tiles and takes it in place of the one that
is installed. Calls of both are interleaved, on one thread and on two, each on a core of its own.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

import torch

import dgconv
from dgconv.bench.settle import settle_
from dgconv.bench.timing import time_side_by_side
from dgconv.deploy.run.prepared import PreparedModel
from dgconv.environment import describe_environment
from dgconv.ops import native

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import native_build
from tests.deploy.byte_networks import expected, random_network
from tests.deploy.tile_networks import tile_networks

ISAS = ("avx512_amx", "avx512_vbmi2")
NETWORKS = {"dense": ("resnet18", {}), "DGC 3/4": ("resnet18_dgc", {"pruning_rate": 0.75})}
RUNS = ((1, 1), (1, 2), (8, 1), (8, 2))  # images, threads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--networks", type=int, default=300, help="random ones, for the bits")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each comparison")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)  # in a process of its own
    arguments = parser.parse_args()
    if arguments.threads:
        stay_on_cores(arguments.threads)
    if arguments.build:
        path = str(native_build.built("tiles", ["-O3"]))
        native.library_path = lambda: path
    if not select(ISAS[0]):
        parser.error("this CPU has no AMX, or the compiler knew none")
    if arguments.threads:
        print(json.dumps([timed(images, arguments) for images, threads in RUNS if threads == arguments.threads]))
        return 0
    differ = count_different(arguments.networks)
    record = describe_environment("cpu") | {"differ": differ, "rows": [], "steps": []}
    for threads in sorted({threads for _, threads in RUNS}):
        for rows, steps in json.loads(in_a_process(threads)):
            record["rows"] += rows
            record["steps"] += steps
    show(record)
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return bool(differ)


def select(isa: str) -> bool:
    return bool(native.library().dgconv_select_isa(isa.encode()))


def count_different(networks: int) -> int:
    """Of networks made for tiles, and of random ones."""
    select(ISAS[0])
    torch.set_num_threads(1)
    differ = 0
    made = [*tile_networks(), *(random_network(Random(f"tiles {n}")) for n in range(networks))]
    for graph, x in made:
        differ += not torch.equal(PreparedModel(graph)(x).view(torch.int32), expected(graph, x).view(torch.int32))
    print(f"{differ} of {len(made)} networks differ from the integer reference")
    return differ


def in_a_process(threads: int) -> str:
    command = [sys.executable, *sys.argv, "--threads", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def stay_on_cores(count: int) -> None:
    """Of which each has other threads of its processor, if it has any, to itself."""
    first: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        first.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    os.sched_setaffinity(0, sorted(first.values())[:count])


def timed(images: int, arguments: argparse.Namespace) -> tuple[list[dict], list[dict]]:
    torch.set_num_threads(arguments.threads)
    x = torch.randn(images, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    rows, steps = [], []
    for title, (name, options) in NETWORKS.items():
        models = {isa: prepared(name, options, isa, arguments.threads) for isa in ISAS}
        calls = {isa: caller(isa, model, x) for isa, model in models.items()}
        results = {isa: call() for isa, call in calls.items()}
        times = time_side_by_side(calls, seconds=arguments.seconds)
        row = {"network": title, "images": images, "threads": arguments.threads}
        rows.append(
            row
            | {"equal": torch.equal(*results.values())}
            | {isa: 1e3 * median(seconds) for isa, seconds in times.items()}
        )
        if images == 1:
            steps += [row | step for step in by_step(models, x)]
    return rows, steps


def prepared(name: str, options: dict, isa: str, threads: int) -> PreparedModel:
    select(isa)
    if (name, threads) not in _graphs:
        torch.manual_seed(0)
        model = dgconv.create_model(name, **options)
        settle_(model, (3, 224, 224))
        calibration = torch.randn(8, 3, 224, 224)
        _graphs[name, threads] = dgconv.deploy.prepare(model, precision="int8", calibration=calibration, force=True)
    return PreparedModel(_graphs[name, threads].graph)


_graphs: dict[tuple[str, int], PreparedModel] = {}


def caller(isa: str, model: PreparedModel, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        select(isa)
        return model(x)

    return call


def by_step(models: dict[str, PreparedModel], x: torch.Tensor, repeats: int = 30) -> list[dict]:
    """Microseconds of each step, and of what a gate takes before it."""
    found: dict[tuple[int, str, str], dict[str, list[float]]] = {}
    for _ in range(repeats):
        for isa, model in models.items():
            select(isa)
            model(x)
            for index, step in enumerate(model.time_by_step(x)):
                for stage, seconds in step.stages.items():
                    found.setdefault((index, step.label, stage), {}).setdefault(isa, []).append(1e6 * seconds)
    return [
        {"step": re.sub(r" \+ .*", "", label), "stage": stage} | {isa: median(times[isa]) for isa in ISAS}
        for (_, label, stage), times in found.items()
    ]


def show(record: dict) -> None:
    print(f"{'network':10}{'images':>7}{'threads':>8}{'AMX':>9}{'VBMI2':>9}  ms")
    for row in record["rows"]:
        head = f"{row['network']:10}{row['images']:7}{row['threads']:8}"
        print(f"{head}{row[ISAS[0]]:9.3f}{row[ISAS[1]]:9.3f}  {'' if row['equal'] else 'DIFFERENT'}")
    for title in NETWORKS:
        for threads in (1, 2):
            print(f"\n{title}, {threads} threads, microseconds: AMX, VBMI2")
            for step in record["steps"]:
                is_of_these = (step["network"], step["threads"]) == (title, threads)
                if is_of_these and step[ISAS[1]]:  # it has that stage
                    print(f"{step['step'][:40]:40} {step['stage']:10}{step[ISAS[0]]:9.1f}{step[ISAS[1]]:9.1f}")


if __name__ == "__main__":
    sys.exit(main())
