"""What int8 gains with each instruction set, and whether ``prepare`` then takes the faster precision by itself.

    python benchmarks/precision_by_isa.py [--isas avx2 portable] [--networks ...] [--seconds 6] [--json FILE]

Each instruction set has a process of its own, begun with DGCONV_ISA, and in it both precisions are timed interleaved.
"Right" is a choice that is the faster one, or slower by less than timings vary.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from dgconv import create_model, deploy
from dgconv.bench.settle import settle_
from dgconv.bench.timing import describe_machine, time_side_by_side
from dgconv.ops import native

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResNet-18": ("resnet18", {}),
    "ResNet-18-DGC 3/4": ("resnet18_dgc", {"pruning_rate": 0.75}),
    "MobileNetV2": ("mobilenetv2", {}),
    "CondenseNet-86-DGC": ("condensenet86_dgc", {}),
}
WITHOUT_VNNI = ("avx2", "portable")
CALIBRATION_IMAGES = 16  # random ones
VARY = 0.05  # of the time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isas", nargs="+", choices=native.ISAS, default=(*WITHOUT_VNNI, native.isa()))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--size", type=int, help="of the images; default the network's own")
    parser.add_argument("--seconds", type=float, default=6.0, help="of timing each network")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_this_process:
        print(json.dumps([measure(name, arguments) for name in arguments.networks]))
        return 0
    rows: list[dict[str, Any]] = []
    for isa in dict.fromkeys(arguments.isas):
        command = [sys.executable, *sys.argv, "--in-this-process"]
        environment = os.environ | {native.ISA_VARIABLE: isa, "OMP_NUM_THREADS": str(arguments.threads)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        rows += json.loads(done.stdout.splitlines()[-1])
        if rows[-1]["instructions"] != isa:
            parser.error(f"this CPU has no {isa}: {rows[-1]['instructions']} was used in its place")
    show(rows)
    if arguments.json:
        told = {"threads": arguments.threads, "date": date.today().isoformat()}
        arguments.json.write_text(json.dumps(describe_machine() | told | {"rows": rows}, indent=1) + "\n")
    return not all(row["is_right"] for row in rows)


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    model_name, options = NETWORKS[name]
    model = create_model(model_name, **options)
    size = model.input_size if arguments.size is None else (3, arguments.size, arguments.size)
    settle_(model, size)
    x, calibration = torch.randn(1, *size), torch.randn(CALIBRATION_IMAGES, *size)
    forms = {
        "float32": deploy.prepare(model),
        "int8": deploy.prepare(model, precision="int8", calibration=calibration, force=True),
    }
    chosen = deploy.prepare(model, precision="int8", calibration=calibration)
    calls = {precision: (lambda form=form: form(x)) for precision, form in forms.items()}
    times = time_side_by_side(calls, seconds=arguments.seconds)
    taken = {precision: round(1e3 * statistics.median(seconds), 3) for precision, seconds in times.items()}
    return {
        "network": name,
        "instructions": native.isa(),
        "size": size[-1],
        "milliseconds": taken,
        "chosen": chosen.precision,
        "told": next((note for note in chosen.notes if note.startswith("float32 is used")), ""),
        "is_right": is_right(chosen.precision, chosen.notes, taken),
    }


def is_right(chosen: str, notes: tuple[str, ...], milliseconds: dict[str, float]) -> bool:
    """Whether the faster precision was chosen, and float32 is said where it is used."""
    is_told = chosen == "int8" or any(note.startswith("float32 is used") for note in notes)
    return is_told and milliseconds[chosen] <= (1 + VARY) * min(milliseconds.values())


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("instructions", "network", "float32, ms", "int8, ms", "chosen", "right", "the report")
    for row in rows:
        taken = [f"{row['milliseconds'][precision]:.2f}" for precision in ("float32", "int8")]
        told = ["right" if row["is_right"] else "wrong", row["told"]]
        table.add_row(row["instructions"], row["network"], *taken, row["chosen"], *told)
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main())
