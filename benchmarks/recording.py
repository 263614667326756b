"""What recording every gate costs, over a plain evaluation of the same images: time and peak memory.

    python benchmarks/recording.py --data-dir DIR [--images 10000] [--device cuda] [--json FILE]

CondenseNet-86-DGC with random weights on the test images of CIFAR-10. Each evaluation has a process of its own, plain
and recording in turn, so that the peaks of memory are its own.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from dgconv import create_model, dynamic_layers
from dgconv.analysis.recording import record_run
from dgconv.data import load_data
from dgconv.data.tensor_split import TensorSplit
from dgconv.environment import describe_environment
from dgconv.errors import UserError
from dgconv.train import evaluate

MODEL = "condensenet86_dgc"
FORMS = ("plain", "recording")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True, help="folder of CIFAR-10")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--in-this-process", choices=FORMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_this_process:
        try:
            print(json.dumps(measure(args.in_this_process, args)))
        except UserError as error:
            parser.error(str(error))
        return
    rows: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
    for _ in range(args.repeats):
        for form in FORMS:
            command = [sys.executable, __file__, *sys.argv[1:], "--in-this-process", form]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(done.returncode)  # it has said why
            rows[form].append(json.loads(done.stdout.splitlines()[-1]))
            print(form, rows[form][-1], file=sys.stderr, flush=True)
    seconds, peaks = ({f: statistics.median(r[key] for r in rows[f]) for f in FORMS} for key in ("seconds", "bytes"))
    result = describe_environment(args.device) | {
        "model": MODEL,
        "images": args.images,
        "seconds": seconds,
        "bytes": peaks,
        "ratio": seconds["recording"] / seconds["plain"],
        "extra_bytes": peaks["recording"] - peaks["plain"],
    }
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"{args.images} images through {MODEL}: "
        f"{seconds['plain']:.2f} s plain, {seconds['recording']:.2f} s recording, "
        f"{result['ratio']:.2f}x, {result['extra_bytes'] / 2**20:.0f} MiB more"
    )


@torch.no_grad()
def settle(model: torch.nn.Module, images: torch.Tensor) -> None:
    """Ordinary numbers, as after training: the norms know the images, and the saliencies are all about 1."""
    for _, layer in dynamic_layers(model):
        layer.generator.reset_to_ones()
        layer.generator.bias.add_(0.01 * torch.randn_like(layer.generator.bias))  # no ties
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the mean over all batches, of which there is one
    model.train()(images)
    model.eval()


def measure(form: str, args: argparse.Namespace) -> dict[str, float]:
    torch.manual_seed(0)
    whole = load_data("cifar10", args.data_dir).test
    assert isinstance(whole, TensorSplit)
    split = TensorSplit(whole.images[: args.images], whole.labels[: args.images], whole.stats, pad=0, flip=False)
    split = split.to(args.device)
    model = create_model(MODEL).to(args.device)
    settle(model, next(iter(split.batches(200, train=False, device=args.device)))[0])
    small = TensorSplit(whole.images[:100], whole.labels[:100], whole.stats, pad=0, flip=False)
    evaluate(model, small, device=args.device)  # so that nothing is done for the first time
    start = time.perf_counter()
    if form == "plain":
        evaluate(model, split, device=args.device)
    else:
        record_run(model, split, device=args.device, classes=10)
    seconds = time.perf_counter() - start
    on_gpu = args.device == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "bytes": peak}


if __name__ == "__main__":
    main()
