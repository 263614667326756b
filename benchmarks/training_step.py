"""One training step, the authors' form against ours: time and peak memory, with ratios.

    python benchmarks/training_step.py                                          # what the device can do in minutes
    python benchmarks/training_step.py --models resnet18 --batch-sizes 256 --forms authors "ours graph bf16"
    python benchmarks/training_step.py --models resnet18 --pruning-rate 0.75 --side 128 --forms dense ours

Each model, batch size and form runs in a process of its own, so that no peak hides another. The authors' form runs
first and last, to show how far the machine drifted; ratios are to the faster of the two. See measure.py for what is
measured and forms.py for the forms.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from forms import ANY_DEVICE, AUTHORS, FORMS
from measure import Row, measure
from rich.console import Console
from rich.table import Table

from dgconv.environment import describe_environment

Header = dict[str, str | int]

AGAIN = f"{AUTHORS}, again"


def parse() -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if on_gpu else "cpu")
    parser.add_argument("--models", nargs="+", metavar="BACKBONE", help="CPU: condensenet50; GPU: four")
    parser.add_argument("--batch-sizes", nargs="+", type=int, metavar="N", help="CPU: 64; GPU: 64 256")
    parser.add_argument("--forms", nargs="+", choices=FORMS, metavar="FORM", help=f"of {', '.join(FORMS)}; default all")
    parser.add_argument("--pruning-rate", type=float, help="of ours, otherwise than the paper has it")
    parser.add_argument("--side", type=int, help="of the images, in pixels; default as the paper trains the network")
    parser.add_argument("--repeats", type=int, help="steps timed, of which the median is taken; CPU: 5, GPU: 30")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="to this file, or instead of the table")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device == "cuda":
        models, batch_sizes, forms = ["condensenet50", "condensenet86", "resnet18", "mobilenetv2"], [64, 256], FORMS
    else:
        models, batch_sizes, forms = ["condensenet50"], [64], ANY_DEVICE
    args.models = args.models or models
    args.batch_sizes = args.batch_sizes or batch_sizes
    args.forms = args.forms or list(forms)
    args.repeats = args.repeats or (30 if args.device == "cuda" else 5)
    if args.device == "cuda" and not on_gpu:
        parser.error("torch sees no GPU; use --device cpu")
    if args.device == "cpu" and not set(args.forms) <= set(ANY_DEVICE):
        parser.error(f"on a CPU there are --forms {', '.join(ANY_DEVICE)}")
    return args


def main() -> None:
    args = parse()
    if args.in_this_process:
        options = {"pruning_rate": args.pruning_rate, "side": args.side}
        of = (args.forms[0], args.models[0], args.batch_sizes[0], args.device, args.repeats)
        print(json.dumps(measure(*of, **options)))
        return
    header = describe_environment(args.device)
    forms = [form for form in args.forms if form != AUTHORS]
    if AUTHORS in args.forms:
        forms = [AUTHORS, *forms, AGAIN] if forms else [AUTHORS]
    rows: list[Row] = []
    for model in args.models:
        for batch_size in args.batch_sizes:
            for form in forms:
                key = {"model": model, "batch_size": batch_size, "form": form}
                rows.append(key | measure_apart(model, batch_size, form, args))
                print(describe(rows[-1]), file=sys.stderr, flush=True)
                if args.json not in (None, "-"):  # after each, so that a run cut short keeps what it has
                    Path(args.json).write_text(json.dumps(header | {"rows": rows}, indent=2) + "\n")
    if args.json == "-":
        print(json.dumps(header | {"rows": rows}, indent=2))
    else:
        show(header, rows)
    if any("failed" in str(row.get("error")) for row in rows):
        sys.exit(1)


def measure_apart(model: str, batch_size: int, form: str, args: argparse.Namespace) -> Row:
    command = [sys.executable, __file__, "--in-this-process", "--device", args.device, "--repeats", str(args.repeats)]
    command += ["--models", model, "--batch-sizes", str(batch_size), "--forms", AUTHORS if form == AGAIN else form]
    for name, value in (("--pruning-rate", args.pruning_rate), ("--side", args.side)):
        command += [name, str(value)] if value is not None else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    sys.stderr.write(done.stderr)
    if done.returncode == -9:
        return {"error": "killed, most likely for want of memory"}
    return {"error": f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"}


def describe(row: Row) -> str:
    name = f"{row['model']}, batch {row['batch_size']}, {row['form']}: "
    if "error" in row:
        return name + str(row["error"])
    memory = f"{mebibytes(row['bytes'])}, reserved {mebibytes(row['reserved'])}"
    return f"{name}{milliseconds(row)}, {memory}, loss {row['loss']:.3f}"


def show(header: Header, rows: list[Row]) -> None:
    console = Console(width=120)
    console.print("  ".join(f"{key} {value}" for key, value in header.items()))
    for model, batch_size in dict.fromkeys((row["model"], row["batch_size"]) for row in rows):
        group = [row for row in rows if (row["model"], row["batch_size"]) == (model, batch_size)]
        base = reference(group)
        table = Table(title=f"{model}, batch {batch_size}", title_justify="left")
        for heading in ("form", "step", "± quartiles", "faster", "peak memory", "ratio", "reserved", "ratio"):
            table.add_column(heading, justify="left" if heading == "form" else "right")
        for row in group:
            if "error" in row:
                table.add_row(str(row["form"]), str(row["error"]))
                continue
            table.add_row(
                str(row["form"]),
                milliseconds(row),
                f"{50 * row['spread']:.0f} %",
                f"{base['seconds'] / row['seconds']:.2f}x" if base else "",
                mebibytes(row["bytes"]),
                ratio(row, base, "bytes"),
                mebibytes(row["reserved"]),
                ratio(row, base, "reserved"),
            )
        console.print(table)


def reference(group: list[Row]) -> Row | None:
    """The faster run of the authors' form or, where that was not asked for, the first form; None if it failed."""
    candidates = [row for row in group if row["form"] in (AUTHORS, AGAIN)] or group[:1]
    return min((row for row in candidates if "error" not in row), key=lambda row: row["seconds"], default=None)


def ratio(row: Row, base: Row | None, key: str) -> str:
    return f"{row[key] / base[key]:.2f}" if base and row[key] is not None and base[key] else ""


def milliseconds(row: Row) -> str:
    return f"{1e3 * row['seconds']:.1f} ms"


def mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.0f} MiB"


if __name__ == "__main__":
    main()
