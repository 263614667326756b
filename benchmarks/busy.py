"""What a busy machine costs: the same work while the cores are free, and beside one busy process on each.

    python benchmarks/busy.py [--epochs 3] [--seconds 5] [--json FILE]

Prepared networks on one thread and on all cores, and the training of the digits; each in a process of its own, with the
waiting of threads as dgconv sets it (see dgconv/__init__.py) and as OpenMP has it by default. Run it on a machine that
has nothing else to do. A busy process gets half a core, so that twice the time is what one thread must take.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CORES = len(os.sched_getaffinity(0))
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
WAITING = {"dgconv's": {}, "OpenMP's": {"GOMP_SPINCOUNT": "300000"}}  # the latter is what it takes of itself
NETWORKS = {"ResNet-18": ("resnet18_dgc", 224), "a tiny network": ("condensenet20_dgc", 32)}

TIME_CALLS = """
import statistics, sys, time
from dgconv import create_model, deploy
from dgconv.bench.settle import settle_
import torch

name, side, threads, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
torch.manual_seed(0)
model = create_model(name)
settle_(model, (3, side, side))
fast, x, times = deploy.prepare(model), torch.rand(1, 3, side, side), []
torch.set_num_threads(threads)
end = time.perf_counter() + seconds
while time.perf_counter() < end or len(times) < 20:
    begin = time.perf_counter()
    fast(x)
    times.append(time.perf_counter() - begin)
print(statistics.median(times), statistics.mean(times))
"""
TRAIN = "from dgconv.cli import main; import sys; main(['train', 'digits', *sys.argv[1:]])"


@contextmanager
def busy_cores() -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(CORES)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(code: str, *arguments: object, waiting: dict[str, str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment | waiting, check=True, capture_output=True, text=True).stdout


def calls(name: str, threads: int, seconds: float, waiting: dict[str, str]) -> dict[str, float]:
    """Seconds of a call, by what they are of many."""
    model, side = NETWORKS[name]
    median, mean = map(float, run(TIME_CALLS, model, side, threads, seconds, waiting=waiting).split())
    return {"median": median, "mean": mean}


def training(epochs: int, waiting: dict[str, str]) -> dict[str, float]:
    """Seconds of all epochs."""
    with tempfile.TemporaryDirectory() as folder:
        run(TRAIN, "--epochs", epochs, "--out", Path(folder) / "run", waiting=waiting)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    return {"total": sum(json.loads(line)["seconds"] for line in lines)}


def measure(epochs: int, seconds: float) -> Iterator[dict[str, object]]:
    for whose, waiting in WAITING.items():
        for name in NETWORKS:
            for threads in (1, CORES):
                yield {"work": name, "threads": threads, "waiting": whose} | calls(name, threads, seconds, waiting)
        yield {"work": f"digits, {epochs} epochs", "threads": CORES, "waiting": whose} | training(epochs, waiting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of calls of each prepared network")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = list(measure(options.epochs, options.seconds))
    with busy_cores():
        for row, busy in zip(rows, measure(options.epochs, options.seconds), strict=True):
            row["busy"] = {name: value for name, value in busy.items() if name in ("median", "mean", "total")}
    print(f"{'work':<18}{'threads':>8}  {'waiting':<10}{'':>8}{'free':>12}{'busy':>12}{'ratio':>8}")
    for row in rows:
        for kind, busy in row["busy"].items():
            free, unit = (row[kind], "s") if kind == "total" else (1e3 * row[kind], "ms")
            busy = busy if kind == "total" else 1e3 * busy
            print(
                f"{row['work']:<18}{row['threads']:>8}  {row['waiting']:<10}{kind:>8}"
                f"{free:>9.2f} {unit:<2}{busy:>9.2f} {unit:<2}{busy / free:>7.2f}x"
            )
    if options.json:
        options.json.write_text(json.dumps({"cores": CORES, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
