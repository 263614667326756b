"""Sparse inference on a GPU beside dense: correctness, the forms of each layer, a roofline, and whole networks.

    python benchmarks/gpu_inference.py --json FILE

ResNet-18-DGC at 224 px, prepared for the GPU, against the undivided ResNet-18 of the same widths in three forms: cuDNN
channels-last with folded batch norms, the same in a CUDA graph, and torch.compile max-autotune. Rounds of all forms in
turn. Whatever fails is reported and left out; FILE is written anew after every part. Nothing but torch and triton is
needed. ``--quick`` takes small images and batches, to try the script itself; it runs without a GPU, too, in Triton's
interpreter.
"""

import argparse
import contextlib
import copy
import json
import signal
import statistics
import time
import traceback
from datetime import date
from pathlib import Path

import torch
from gpu_layers import DEVICE, ON_GPU, channels_last, check_layers, check_network, check_stem, roofline
from torch import nn

from dgconv.deploy.compile.prepare import graph_of
from dgconv.deploy.gpu.choice import captured, seconds
from dgconv.deploy.gpu.model import GpuModel
from dgconv.models import create_model

START = time.monotonic()
DTYPES = (torch.bfloat16, torch.float16)
TOLERANCE = 1.5  # times the error that torch makes in the same precision
ROUNDS = 15
MODELS: list[nn.Module] = []  # sparse and dense


def in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


class Results(dict):
    """Written after each part."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(errors=[])
        self.path = path

    @contextlib.contextmanager
    def part(self, name: str, limit: int = 100):
        """What hangs or fails is noted, and the rest goes on."""
        begin = time.monotonic()
        signal.signal(signal.SIGALRM, out_of_time)
        signal.alarm(limit)
        try:
            yield
        except Exception as error:
            print(f"FAILED {name}: {traceback.format_exc()[-1500:]}", flush=True)
            self["errors"].append({"part": name, "error": in_a_line(error)})
        finally:
            signal.alarm(0)
        self.setdefault("seconds", {})[name] = round(time.monotonic() - begin, 1)
        print(f"-- {name}: {time.monotonic() - begin:.1f} s, {time.monotonic() - START:.0f} s in all", flush=True)
        self.save()

    def save(self) -> None:
        if self.path:
            self.path.write_text(json.dumps(self, indent=1, default=str))


def out_of_time(*_: object) -> None:
    raise TimeoutError("this part took too long")


def awake(model: nn.Module) -> nn.Module:
    """With batch norms as training leaves them, so that every block counts and no scale explodes."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.0, generator=generator)
            nn.init.normal_(module.bias, std=0.1, generator=generator)
            nn.init.normal_(module.running_mean, std=0.05, generator=generator)
            module.running_var.fill_(1.0)
    return model.eval()


@torch.no_grad()
def calibrated(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """Statistics of the batch norms from a batch, as after training."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    model.train()(x)
    return model.eval()


def networks(side: int) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    made = []
    for name, options in (("resnet18_dgc", {"pruning_rate": 0.75}), ("resnet18", {})):
        model = awake(create_model(name, **options)).to(DEVICE)
        model = calibrated(model, torch.randn(16 if ON_GPU else 2, 3, side, side, device=DEVICE)).cpu()
        made.append(model)
    return made[0], made[1]


def prepared(model: nn.Module, dtype: torch.dtype) -> GpuModel:
    with torch.no_grad():
        return GpuModel(graph_of(copy.deepcopy(model)), DEVICE, dtype)


@torch.no_grad()
def check_networks(results: Results, model: nn.Module, x: torch.Tensor) -> None:
    found = {}
    for dtype in DTYPES:
        try:
            row = check_network(model, prepared(model, dtype), x.to(dtype))
            found[str(dtype)] = row | {"ok": row["error"] < TOLERANCE * row["error_of_torch"]}
        except Exception as problem:
            traceback.print_exc()
            found[str(dtype)] = {"failed": f"{type(problem).__name__}: {problem}"[:500]}
        print("network", dtype, found[str(dtype)], flush=True)
    results["network_correct"] = found


def measure_ceilings(results: Results) -> tuple[float, float]:
    """TFLOP/s of a large matrix product on random numbers and TB/s of a copy, bytes read plus written."""
    a, b = (torch.randn(8192, 8192, device=DEVICE).to(torch.bfloat16) for _ in range(2))
    flops = 2 * 8192**3 / seconds(lambda: a @ b, DEVICE) / 1e12
    source = torch.empty(2**31, device=DEVICE, dtype=torch.uint8)
    target = torch.empty_like(source)
    rate = 2 * source.numel() / seconds(lambda: target.copy_(source), DEVICE) / 1e12
    results["ceilings"] = {"TFLOP/s": flops, "TB/s": rate}
    print(f"ceilings: {flops:.0f} TFLOP/s, {rate:.2f} TB/s")
    return flops, rate


def folded(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A dense ResNet with its batch norms folded, channels-last."""
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    for module in list(model.modules()):
        names = dict(module.named_children())
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2"), ("0", "1")):
            if isinstance(names.get(conv), nn.Conv2d) and isinstance(names.get(norm), nn.BatchNorm2d):
                setattr(module, conv, fuse_conv_bn_eval(names[conv], names[norm]))
                setattr(module, norm, nn.Identity())
    left = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    print(f"dense: {left} batch norms are not folded")
    return model.to(DEVICE, dtype, memory_format=torch.channels_last)


class Static:
    """A function of an image, captured."""

    def __init__(self, call, x: torch.Tensor) -> None:
        self.x, self.graph = x, captured(lambda: call(x), DEVICE)

    def __call__(self) -> None:
        self.graph.replay()


def compare(results: Results, sparse: GpuModel, dense: nn.Module, compiled, x: torch.Tensor) -> None:
    """Whole networks in turn; every form is a CUDA graph, but plain cuDNN."""
    batch = len(x)
    forms = {}
    with torch.no_grad():
        for name, make in {
            "sparse": lambda: sparse.replay(x).replay,
            "cudnn": lambda: lambda: dense(x),
            "cudnn graph": lambda: Static(dense, x),
            "compiled": lambda: compiled,
        }.items():
            if name == "compiled" and compiled is None:
                continue
            try:
                forms[name] = make()
            except Exception as problem:
                print(f"FAILED {name} at batch {batch}: {in_a_line(problem)}", flush=True)
                results["errors"].append({"part": f"{name} {batch}", "error": in_a_line(problem)})
        times: dict[str, list[float]] = {name: [] for name in forms}
        inner = max(1, 64 // batch)
        for call in forms.values():
            for _ in range(3):
                call()
        for _ in range(ROUNDS):
            for name, call in forms.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(inner):
                    call()
                end.record()
                end.synchronize()
                times[name].append(start.elapsed_time(end) / inner)
    medians = {name: statistics.median(values) for name, values in times.items()}
    rivals = {name: value for name, value in medians.items() if name != "sparse"}
    row = {"batch": batch, "ms": medians, "least": {name: min(values) for name, values in times.items()}}
    if "sparse" in medians and rivals:
        best = min(rivals, key=rivals.__getitem__)
        row |= {"best_dense": best, "speedup": rivals[best] / medians["sparse"]}
        print(
            f"== batch {batch}: sparse is {row['speedup']:.3f} times as fast as the best dense form ({best})", end="; "
        )
    print("ms: " + ", ".join(f"{name} {value:.3f}" for name, value in medians.items()), flush=True)
    results.setdefault("networks", []).append(row)


def compiled_form(dense: nn.Module, x: torch.Tensor):
    """torch.compile max-autotune, frozen, of its own CUDA graph; compiled for one batch."""
    import torch._inductor.config as config

    config.freezing = True
    torch._dynamo.reset()
    fast = torch.compile(dense, mode="max-autotune", dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
    return lambda: fast(x)


def profile(results: Results, sparse: GpuModel, x: torch.Tensor) -> None:
    """Where the time of a replay goes, kernel by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    batch = len(x)
    graph = sparse.replay(x)
    with profiler(activities=[ProfilerActivity.CUDA]) as found:
        graph.replay()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda event: -event.device_time_total)[:18]
    kernels = [(event.key[:80], event.count, round(event.device_time_total, 1)) for event in rows]
    results.setdefault("profile", {})[batch] = kernels
    print(f"kernels of a replay at batch {batch}: name, launches, us")
    for row in kernels:
        print("  ", *row)


def check_parts(results: Results, side: int) -> None:
    with results.part("stem correct", 20):
        results["stem_correct"] = check_stem(side)
    with results.part("layers correct", 40):
        results["layers_correct"] = check_layers()


def images(batch: int, side: int) -> torch.Tensor:
    return channels_last(batch, 3, side, side)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="small: to try the script")
    parser.add_argument("--only-times", action="store_true", help="no checks, nothing compiled")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1, 32])
    parser.add_argument("--seconds", type=float, default=260, help="after which no further part is begun")
    args = parser.parse_args()
    results = Results(args.json)
    torch.backends.cudnn.benchmark = True
    side, batches = (32, [2]) if args.quick or not ON_GPU else (224, args.batches)
    results["machine"] = torch.cuda.get_device_name() if ON_GPU else "cpu"
    results["torch"] = torch.__version__
    results["date"] = str(date.today())
    print(results["machine"], torch.__version__, flush=True)

    with results.part("networks"):
        MODELS.extend(networks(side))
    if not args.only_times:
        with results.part("network correct", 90):
            check_networks(results, MODELS[0], images(8 if ON_GPU else 2, side))
    if not ON_GPU:
        check_parts(results, 20)
        return
    sparse = prepared(MODELS[0], torch.bfloat16)
    dense = folded(MODELS[1], torch.bfloat16)
    for batch in batches:
        x = images(batch, side)
        with results.part(f"choosing forms at batch {batch}", 60):
            sparse(x)
        print("branches side by side:", sparse.side_by_side.get(x.shape))
        with results.part(f"batch {batch} beside cuDNN", 40):
            compare(results, sparse, dense, None, x)
    for batch in [] if args.only_times else batches:
        x = images(batch, side)
        with results.part(f"batch {batch} beside all", 80):
            if time.monotonic() - START < args.seconds:
                compare(results, sparse, dense, compiled_form(copy.deepcopy(dense), x), x)
            else:
                print(f"no time left to compile for batch {batch}")
    flops, rate = 790.0, 4.3
    with results.part("ceilings"):
        flops, rate = measure_ceilings(results)
    for batch in batches:
        with results.part(f"profile at batch {batch}", 20):
            profile(results, sparse, images(batch, side))
    with results.part("roofline", 30):
        roofline(results, sparse, flops, rate)
    if not args.only_times and time.monotonic() - START < args.seconds + 50:
        check_parts(results, 75)
    for row in results.get("networks", []):
        print("==", row)
    print("errors:", [entry["part"] for entry in results["errors"]], f"{time.monotonic() - START:.0f} s")


if __name__ == "__main__":
    main()
