"""One training step, ours against masked copies: time and peak memory, with ratios.

    python benchmarks/training_step.py --model condensenet50 --batch-size 64

Each form runs in a process of its own. On a CPU the peak is that of the process's resident memory over what it held
before the step; on a GPU, of the memory allocated there.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from functools import partial

import torch
import torch.nn.functional as F
from machine import describe_machine
from masked_copies import MaskedCopiesConv2d
from rich.console import Console
from rich.table import Table

from dgconv import DynamicGroupConv2d, create_model
from dgconv.train import lasso_loss, take_saliencies

FORMS = {"masked copies": MaskedCopiesConv2d, "ours": DynamicGroupConv2d}


def measure(form: str, backbone: str, batch_size: int, device: str, repeats: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = create_model(backbone, conv_layer=partial(FORMS[form], pruning_rate=0.75)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    def step(count: int) -> None:
        x = torch.randn(count, *model.input_size, device=device)
        logits = model(x)
        loss = F.cross_entropy(logits, torch.zeros(count, dtype=torch.long, device=device))
        loss = loss + 1e-5 * lasso_loss(take_saliencies(model))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step(2)  # libraries, momentum and gradients are there before
    before = peak_memory(device)
    step(batch_size)
    peak = peak_memory(device) - before
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        step(batch_size)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds), "bytes": peak}


def peak_memory(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_apart(form: str, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--form", form, "--model", args.model, "--device", args.device]
    command += ["--batch-size", str(args.batch_size), "--repeats", str(args.repeats)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="condensenet50", help="backbone")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.form:
        print(json.dumps(measure(args.form, args.model, args.batch_size, args.device, args.repeats)))
        return
    results = {form: measure_apart(form, args) for form in FORMS}
    header = describe_machine(args.device) | {"model": args.model, "batch_size": args.batch_size}
    if args.json:
        print(json.dumps(header | {"forms": results}, indent=2))
    else:
        show(header, results)


def show(header: dict[str, str | int], results: dict[str, dict[str, float]]) -> None:
    base = results["masked copies"]
    table = Table(title="  ".join(f"{key} {value}" for key, value in header.items()))
    for heading in ("form", "step", "ratio", "peak memory", "ratio"):
        table.add_column(heading, justify="right")
    for form, result in results.items():
        table.add_row(
            form,
            f"{1e3 * result['seconds']:.1f} ms",
            f"{result['seconds'] / base['seconds']:.2f}",
            f"{result['bytes'] / 2**20:.0f} MiB",
            f"{result['bytes'] / base['bytes']:.2f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
