"""Networks of timm with random weights: what is converted, what runs native, and milliseconds beside other runtimes.

python benchmarks/any_network.py [--networks resnet50 ...] [--size 224] [--threads 1] [--seconds 6] [--int8] [--json F]

All forms of a network are timed interleaved, in one run; a share is that of the time. A ratio is our dense form's time
over that of the fastest of the others in the same precision.
"""

import argparse
import copy
import json
import statistics
import tempfile
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from dgconv import convert_, deploy
from dgconv.bench.runtimes import RUNTIMES, Source
from dgconv.bench.timing import describe_machine, time_side_by_side
from dgconv.deploy.precision import Precision
from dgconv.errors import UserError
from dgconv.layers.convert import DGCConfig
from dgconv.models.others import import_library

NETWORKS = (
    *("resnet50", "mobilenetv2_100", "tf_efficientnet_lite0", "densenet121", "regnetx_002", "vgg11_bn", "repvgg_a0"),
    *("convnext_atto", "mobilenetv3_small_100", "efficientnet_b0"),
)
RATE = 0.75
CALIBRATION_IMAGES = 32  # random ones


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--int8", action="store_true", help="in int8, too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    precisions: tuple[Precision, ...] = ("float32", "int8") if arguments.int8 else ("float32",)
    rows = [
        measure(name, arguments.size, arguments.threads, arguments.seconds, precisions) for name in arguments.networks
    ]
    show(rows)
    if arguments.json:
        settings = {"size": arguments.size, "threads": arguments.threads, "date": date.today().isoformat()}
        arguments.json.write_text(json.dumps(describe_machine() | settings | {"rows": rows}, indent=1) + "\n")


def measure(
    name: str, size: int, threads: int, seconds: float, precisions: tuple[Precision, ...] = ("float32",)
) -> dict[str, Any]:
    model = network(name)
    x = torch.randn(1, 3, size, size)
    dynamic, unpruned = copy.deepcopy(model), copy.deepcopy(model)
    report = convert_(dynamic, DGCConfig(pruning_rate=RATE), input_size=(3, size, size))
    convert_(unpruned, DGCConfig(pruning_rate=0), input_size=(3, size, size))
    with torch.no_grad():
        expected = model(x)
        scale = float(expected.abs().max())
        at_rate_0 = float((unpruned(x) - expected).abs().max()) / scale
    dense, dgc = deploy.prepare(model, example=x), deploy.prepare(dynamic, example=x)
    calls: dict[str, Any] = {"ours": lambda: dense(x), f"ours, DGC {RATE:g}": lambda: dgc(x)}
    calibration = torch.randn(CALIBRATION_IMAGES, 3, size, size)
    if "int8" in precisions:
        bytes = deploy.prepare(model, example=x, precision="int8", calibration=calibration, force=True)
        calls["ours int8"] = lambda: bytes(x)
    with tempfile.TemporaryDirectory() as folder:
        source = Source(model, (3, size, size), calibration, Path(folder))
        for runtime in RUNTIMES:
            if runtime.precision in precisions:
                try:
                    calls[called(runtime.name, runtime.precision)] = runtime.get_ready(source)(threads, x)
                except UserError as error:
                    print(f"{name}: {error}")
        times = time_side_by_side(calls, seconds=seconds)
    milliseconds = {form: round(statistics.median(taken) * 1e3, 3) for form, taken in times.items()}
    ratios = {}
    for precision in precisions:
        names = {called(runtime.name, precision) for runtime in RUNTIMES}
        if rivals := [milliseconds[form] for form in names if form in milliseconds]:
            ratios[precision] = round(milliseconds[called("ours", precision)] / min(rivals), 3)
    return {
        "network": name,
        "converted": len(report.replaced),
        "convolutions": len(report.rows),
        "left": dict(Counter(row.reason.partition(":")[0] for row in report.left)),
        "native share": {form: native_share(model, x) for form, model in (("ours", dense), ("DGC", dgc))},
        "error at rate 0": at_rate_0,
        "error prepared": float((dense(x) - expected).abs().max()) / scale,
        "milliseconds": milliseconds,
        "ratios": ratios,
    }


def called(form: str, precision: Precision) -> str:
    return form if precision == "float32" else f"{form} {precision}"


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return import_library("timm").create_model(name).eval()


def native_share(prepared: deploy.PreparedModel, x: torch.Tensor) -> float:
    splits = [prepared.time_split(x) for _ in range(5)][1:]
    shares = [1 - split.get("torch", 0.0) / sum(split.values()) for split in splits]
    return round(statistics.median(shares), 4)


def show(rows: list[dict[str, Any]]) -> None:
    forms = list(dict.fromkeys(form for row in rows for form in row["milliseconds"]))
    table = Table("network", "converted", "native", "error at rate 0", *forms, "ratios")
    for row in rows:
        cells = [f"{row['milliseconds'].get(form, float('nan')):.2f}" for form in forms]
        converted = f"{row['converted']} of {row['convolutions']}"
        share = f"{min(row['native share'].values()):.1%}"
        table.add_row(
            row["network"],
            converted,
            share,
            f"{row['error at rate 0']:.1e}",
            *cells,
            " ".join(map(str, row["ratios"].values())),
        )
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
