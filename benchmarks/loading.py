"""What the checks of a stored network cost when it is loaded: with them, without, and as safetensors reads weights.

    python benchmarks/loading.py [--model resnet18_dgc] [--repeats 20] [--json FILE]

Loading is reading the weights, comparing every checksum, asking whether the graph can be run, and packing for this CPU.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from dgconv import create_model, deploy
from dgconv.bench.timing import time_side_by_side
from dgconv.deploy import storage, weights
from dgconv.environment import describe_environment
from dgconv.runs.tensors import CHECKSUMS, TensorFile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18_dgc")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        deploy.save(deploy.prepare(create_model(args.model).eval()), folder)
        forms = {"checked": nullcontext, "unchecked": _without_checks, "safetensors": _by_safetensors}
        calls = {form: partial(_load, folder, within) for form, within in forms.items()}
        seconds = {form: statistics.median(times) for form, times in time_side_by_side(calls, args.repeats).items()}
    ratios = {f"ratio_to_{form}": seconds["checked"] / seconds[form] for form in forms if form != "checked"}
    found = {"model": args.model, **seconds, **ratios}
    print(json.dumps(found, indent=1))
    if args.json:
        args.json.write_text(json.dumps(found | describe_environment("cpu"), indent=1) + "\n")


def _load(folder: str, within: Callable[[], AbstractContextManager[None]]) -> None:
    with within():
        deploy.load(folder)


@contextmanager
def _without_checks() -> Iterator[None]:
    with (
        patch.object(storage, "why_not", lambda graph: None),
        patch.object(weights, "checksum", lambda tensor: ""),
        patch.object(weights, "compare_checksums", lambda *sums: None),
    ):
        yield


@contextmanager
def _by_safetensors() -> Iterator[None]:
    """The usual reader, which checks no more than the header."""
    with _without_checks(), patch.object(storage, "read_weights", _read):
        yield


def _read(path: Path) -> TensorFile:
    with safe_open(path, "pt") as file:
        texts = {name: text for name, text in file.metadata().items() if name != CHECKSUMS}
    return TensorFile(load_file(path), texts)


if __name__ == "__main__":
    sys.exit(main())
