"""The sixteen 3x3 convolutions of ResNet-18 at 224 px on this CPU, batch 1: dense, SGC and DGC.

    python benchmarks/cpu_convs.py                              # a table for 1 and for all threads
    python benchmarks/cpu_convs.py --picture scaling.png        # time against the share of channels kept, 1 - xi
    python benchmarks/cpu_convs.py --layers                     # each shape on its own, with GFLOP/s

The convolutions follow each other as in the network, with nothing in between. Dense and SGC (4 groups) are torch's, in
the faster of its two layouts. DGC (4 heads) is prepared by `dgconv.deploy.prepare`; pooling, generator and gate are
part of its time. Our kernels compute 3x3 of stride 1 by Winograd's method, torch's do not: "dense prepared" and "SGC
prepared", by our kernels too, tell what DGC itself saves.

Timed side by side, as :mod:`dgconv.bench.timing` does it: each repeat runs every form in turn.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from dgconv.bench.timing import time_side_by_side
from dgconv.deploy import prepare
from dgconv.environment import describe_environment
from dgconv.layers import DynamicGroupConv2d
from dgconv.ops import native

Row = dict[str, Any]

HEADS, RATE = 4, Fraction(3, 4)
RATES = (Fraction(0), Fraction(1, 3), Fraction(1, 2), RATE, Fraction(7, 8))
# input channels, output channels, stride, input size, how many there are
LAYERS = (
    (64, 64, 1, 56, 4),
    (64, 128, 2, 56, 1),
    (128, 128, 1, 28, 3),
    (128, 256, 2, 28, 1),
    (256, 256, 1, 14, 3),
    (256, 512, 2, 14, 1),
    (512, 512, 1, 7, 3),
)
LEAST_SPEEDUP, MOST_OF_SGC, MOST_OF_DENSE_UNPRUNED = 3.5, 1.10, 1.25  # what we promise


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", nargs="+", type=int, default=sorted({1, os.cpu_count() or 1}), metavar="N")
    parser.add_argument("--repeats", type=int, default=30, help="of which the median is taken")
    parser.add_argument("--layers", action="store_true", help="measure each shape on its own, too")
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    parser.add_argument("--picture", metavar="FILE", help="plot time against 1 - xi")
    args = parser.parse_args()
    if min(*args.threads, args.repeats) < 1:
        parser.error("--threads and --repeats must be at least 1")
    if reason := native.why_not():
        parser.error(reason)
    return args


def main() -> None:
    args = parse()
    header = describe_environment("cpu") | {"instructions": native.isa(), "repeats": args.repeats}
    del header["threads"]  # each row has its own
    console = Console(width=120)
    console.print("  ".join(f"{key} {value}" for key, value in header.items()))
    everything = tuple(layer[:4] for layer in LAYERS for _ in range(layer[4]))
    rows: list[Row] = []
    for threads in args.threads:
        torch.set_num_threads(threads)
        rows.append({"threads": threads, "layers": "all"} | measure(everything, RATES, args.repeats))
        show(console, rows[-1])
        if args.layers:
            shapes = [
                {"threads": threads, "layers": describe(layer)} | measure((layer[:4],), (RATE,), args.repeats)
                for layer in LAYERS
            ]
            show_layers(console, shapes)
            rows += shapes
    if args.json:
        Path(args.json).write_text(json.dumps(header | {"rows": rows}, indent=2) + "\n")
    if args.picture:
        plot([row for row in rows if row["layers"] == "all"], header, args.picture)


def measure(layers: tuple[tuple[int, ...], ...], rates: tuple[Fraction, ...], repeats: int) -> Row:
    """Median seconds of each form."""
    torch.manual_seed(0)
    images = torch.randn(1, layers[0][0], layers[0][3], layers[0][3])
    forms: dict[str, Callable[[], Tensor]] = {}
    for layout, memory_format in (("NCHW", torch.contiguous_format), ("channels_last", torch.channels_last)):
        for name, groups in (("dense", 1), ("SGC", HEADS)):
            convs = nn.Sequential(*(nn.Conv2d(i, o, 3, s, 1, groups=groups, bias=False) for i, o, s, _ in layers))
            convs.to(memory_format=memory_format).requires_grad_(False)
            forms[f"{name} {layout}"] = partial(convs, images.to(memory_format=memory_format))
            if layout == "NCHW":
                forms[f"{name} prepared"] = partial(prepare(convs.eval()), images)
    for rate in rates:
        convs = nn.Sequential(*(dynamic_conv(i, o, s, float(rate)) for i, o, s, _ in layers))
        forms[f"DGC {rate}"] = partial(prepare(convs.eval()), images)
    for name, call in forms.items():
        assert call().isfinite().all(), f"{name} overflows"
    seconds = time_side_by_side(forms, repeats)
    row: Row = {name: statistics.median(values) for name, values in seconds.items()}
    for name in ("dense", "SGC"):
        row[name] = min(row[f"{name} NCHW"], row[f"{name} channels_last"])
    row["dense operations"] = sum(2 * 9 * i * o * (size // s) ** 2 for i, o, s, size in layers)
    return row


@torch.no_grad()
def dynamic_conv(inputs: int, outputs: int, stride: int, rate: float) -> DynamicGroupConv2d:
    """With weights and scores of a size that keeps the values finite through sixteen layers."""
    conv = DynamicGroupConv2d(inputs, outputs, 3, stride, 1, heads=HEADS, pruning_rate=rate)
    nn.init.normal_(conv.weight, std=(9 * inputs * (1 - rate)) ** -0.5)
    nn.init.normal_(conv.generator.weight2, std=0.01)
    nn.init.uniform_(conv.generator.bias, 0.5, 1)
    return conv


def show(console: Console, row: Row) -> None:
    table = Table(title=f"sixteen 3x3 convolutions, {threads_of(row)}", title_justify="left")
    for heading in ("form", "time", "dense / time", "time / SGC", "time / ((1 - xi) dense)"):
        table.add_column(heading, justify="left" if heading == "form" else "right")
    for name in (
        "dense NCHW",
        "dense channels_last",
        "dense prepared",
        "SGC NCHW",
        "SGC channels_last",
        "SGC prepared",
    ):
        table.add_row(name, milliseconds(row[name]), f"{row['dense'] / row[name]:.2f}", f"{row[name] / row['SGC']:.2f}")
    for rate in RATES:
        time_ = row[f"DGC {rate}"]
        ideal = float(1 - rate) * row["dense"]
        ratios = (row["dense"] / time_, time_ / row["SGC"], time_ / ideal)
        table.add_row(f"DGC, xi = {rate}", milliseconds(time_), *(f"{ratio:.2f}" for ratio in ratios))
    console.print(table)
    speedup, of_sgc = row["dense"] / row[f"DGC {RATE}"], row[f"DGC {RATE}"] / row["SGC"]
    unpruned = row["DGC 0"] / row["dense"]
    for what, value, is_met in (
        (f"xi = {RATE}: at least {LEAST_SPEEDUP}x faster than dense", speedup, speedup >= LEAST_SPEEDUP),
        (f"xi = {RATE}: at most {MOST_OF_SGC:.2f}x the time of SGC", of_sgc, of_sgc <= MOST_OF_SGC),
        (f"xi = 0: at most {MOST_OF_DENSE_UNPRUNED}x the time of dense", unpruned, unpruned <= MOST_OF_DENSE_UNPRUNED),
    ):
        console.print(f"{'met   ' if is_met else 'MISSED'} {what}: {value:.2f}x")


def show_layers(console: Console, rows: list[Row]) -> None:
    table = Table(title=f"each on its own, xi = {RATE}, {threads_of(rows[0])}", title_justify="left")
    for heading in ("layer", "dense", "SGC", "DGC", "dense / DGC", "DGC / SGC", "DGC GFLOP/s *"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for row in rows:
        dgc = row[f"DGC {RATE}"]
        gigaflops = float(1 - RATE) * row["dense operations"] / dgc / 1e9
        ratios = (f"{row['dense'] / dgc:.2f}", f"{dgc / row['SGC']:.2f}", f"{gigaflops:.0f}")
        table.add_row(
            row["layers"], *(f"{1e6 * row[form]:.0f} us" for form in ("dense", "SGC", f"DGC {RATE}")), *ratios
        )
    console.print(table)
    console.print("* operations of the direct method; Winograd's needs fewer")


def plot(rows: list[Row], header: dict[str, Any], file: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(rows), figsize=(5 * len(rows), 4), squeeze=False, layout="constrained")
    kept = [float(1 - rate) for rate in RATES]
    for axis, row in zip(axes[0], rows, strict=True):
        dense, sgc = 1e3 * row["dense"], 1e3 * row["SGC"]
        axis.plot([0, 1], [0, dense], ":", color="grey", label="(1 - xi) of dense")
        axis.axhline(dense, color="black", linewidth=1, label="dense, torch")
        axis.axhline(
            1e3 * row["dense prepared"], color="black", linewidth=1, linestyle="--", label="dense, our kernels"
        )
        axis.axhline(sgc, color="tab:orange", linewidth=1, label=f"SGC, {HEADS} groups, torch")
        axis.plot(kept, [1e3 * row[f"DGC {rate}"] for rate in RATES], "o-", label=f"DGC, {HEADS} heads")
        axis.set(xlabel="share of channels kept, 1 - xi", title=threads_of(row), xlim=(0, 1.03), ylim=(0, 1.4 * dense))
    axes[0][0].set_ylabel("milliseconds, sixteen 3x3 convolutions")
    axes[0][0].legend(frameon=False)
    figure.suptitle(f"{header['hardware']}, torch {header['torch']}, {header['date']}", fontsize=9)
    figure.savefig(file, dpi=150)


def describe(layer: tuple[int, ...]) -> str:
    inputs, outputs, stride, size, count = layer
    return f"{count} x {inputs} to {outputs}, {size} px, stride {stride}"


def threads_of(row: Row) -> str:
    return f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


if __name__ == "__main__":
    main()
