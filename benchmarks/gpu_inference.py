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
import os
import statistics
import time
import traceback
from pathlib import Path

import torch
from torch import nn

START = time.monotonic()
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from dgconv.deploy.compile.prepare import graph_of  # noqa: E402
from dgconv.deploy.gpu import layers  # noqa: E402
from dgconv.deploy.gpu.model import GpuModel  # noqa: E402
from dgconv.models import create_model  # noqa: E402

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 4e-3}  # of the norm of float32 scores
ROUNDS = 15


class Results(dict):
    """Written after each part."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(errors=[])
        self.path = path

    @contextlib.contextmanager
    def part(self, name: str):
        begin = time.monotonic()
        try:
            yield
        except Exception as error:
            text = traceback.format_exc()
            print(f"FAILED {name}: {type(error).__name__}: {error}\n{text[-1500:]}", flush=True)
            self["errors"].append({"part": name, "error": text[-3000:]})
        self.setdefault("seconds", {})[name] = round(time.monotonic() - begin, 1)
        print(f"-- {name}: {time.monotonic() - begin:.1f} s, {time.monotonic() - START:.0f} s in all", flush=True)
        self.save()

    def save(self) -> None:
        if self.path:
            self.path.write_text(json.dumps(self, indent=1, default=str))


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


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@torch.no_grad()
def check_layers(results: Results) -> None:
    """Each form of some odd layers against float64, and how often the kept channels are those of float32."""
    from dgconv.ops.reference import dynamic_group_conv2d_reference
    from dgconv.ops.triton import dynamic_conv
    from dgconv.ops.triton.dynamic_conv import Geometry, Tile

    rows = []
    shapes = [
        (2, 64, 64, 4, 16, 14, 3, 1),
        (3, 96, 60, 3, 24, 15, 3, 2),
        (1, 130, 48, 2, 33, 7, 1, 1),
        (2, 64, 128, 4, 1, 9, 1, 2),
    ]
    tiles = [
        Tile(64, 16, 16),
        Tile(64, 32, 16, False, 4, 3),
        Tile(128, 32, 16, True, 4, 4),
        Tile(16, 16, 16, True, 4, 4),
    ]
    for batch, channels, outputs, heads, keep, side, kernel, stride in shapes if ON_GPU else shapes[:1]:
        geometry = Geometry(kernel, stride, kernel // 2)
        x = torch.randn(batch, channels, side, side, device=DEVICE).to(torch.bfloat16)
        x = x.contiguous(memory_format=torch.channels_last)
        weight = torch.randn(outputs, channels, kernel, kernel, device=DEVICE).to(torch.bfloat16) / 16
        width = 8
        weight1 = torch.randn(heads, width, channels, device=DEVICE)
        weight2, bias = torch.randn(heads, width, channels, device=DEVICE), torch.ones(heads, channels, device=DEVICE)
        places = torch.randperm(channels, device=DEVICE).int()
        sums = dynamic_conv.sums(x)
        pooled = x.double().mean((2, 3))[:, places.long()]
        hidden = torch.relu(torch.einsum("hdc,bc->bhd", weight1.double(), pooled))
        saliency = torch.relu(torch.einsum("hdc,bhd->bhc", weight2.double(), hidden) + bias)
        order = saliency.float().argsort(dim=-1, descending=True, stable=True)[..., :keep]
        index, gates = dynamic_conv.select(sums, side * side, weight1, weight2, bias, keep, places)
        chosen = torch.zeros_like(saliency).scatter_(2, order, 1.0)
        own = torch.zeros_like(saliency).scatter_(2, places.argsort()[index[..., :keep].long()], 1.0)
        same = float((chosen == own).double().mean())
        every = torch.zeros(batch, heads, channels, device=DEVICE).scatter_add_(2, index.long(), gates)
        expected = dynamic_group_conv2d_reference(x.double(), weight.double(), every.double(), stride, kernel // 2)
        laid_out = dynamic_conv.lay_out(weight, heads, torch.arange(channels, device=DEVICE))
        for tile in tiles:
            try:
                y, parts = dynamic_conv.convolve(
                    x, index, gates, laid_out, None, keep, outputs // heads, geometry, tile, with_sums=True
                )
                row = {"error": error(y, expected), "sums": error(parts.sum(1), y.float().sum((2, 3)))}
            except Exception as problem:
                row = {"failed": f"{type(problem).__name__}: {problem}"[:300]}
            row |= {
                "shape": (batch, channels, outputs, heads, keep, side, kernel, stride),
                "tile": str(tile),
                "same": same,
            }
            bad = "failed" in row or not row["error"] < 1e-2 or not row["sums"] < 1e-2 or same < 1
            print("BAD" if bad else "ok ", row, flush=True)
            rows.append(row | {"bad": bad})
    results["layers_correct"] = rows


@torch.no_grad()
def check_network(results: Results, model: nn.Module, x: torch.Tensor) -> None:
    """Against the original in float32; float16 keeps the same channels more often than bfloat16."""
    model.to(DEVICE)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    expected = model(x)
    torch.backends.cudnn.allow_tf32 = before
    model.cpu()
    found = {}
    for dtype, tolerance in TOLERANCE.items():
        try:
            off = error(prepared(model, dtype)(x), expected)
            found[str(dtype)] = {"error": off, "tolerance": tolerance, "ok": off < tolerance}
        except Exception as problem:
            found[str(dtype)] = {"failed": f"{type(problem).__name__}: {problem}"[:500]}
        print("network", dtype, found[str(dtype)], flush=True)
    results["network_correct"] = found


def measure_ceilings(results: Results) -> tuple[float, float]:
    """TFLOP/s of a large matrix product on random numbers and TB/s of a copy, bytes read plus written."""
    a, b = (torch.randn(8192, 8192, device=DEVICE).to(torch.bfloat16) for _ in range(2))
    flops = 2 * 8192**3 / layers.seconds(lambda: a @ b, DEVICE) / 1e12
    source = torch.empty(2**31, device=DEVICE, dtype=torch.uint8)
    target = torch.empty_like(source)
    rate = 2 * source.numel() / layers.seconds(lambda: target.copy_(source), DEVICE) / 1e12
    results["ceilings"] = {"TFLOP/s": flops, "TB/s": rate}
    print(f"ceilings: {flops:.0f} TFLOP/s, {rate:.2f} TB/s")
    return flops, rate


def roofline(results: Results, model: GpuModel, flops: float, rate: float) -> None:
    """For each shape of layer: the floors, and what its parts and its forms take."""
    table = results.setdefault("roofline", [])
    by_shape: dict = {}
    for shape, form, took in model.tried:
        by_shape.setdefault(shape, []).append((took, form))
    model.tried.clear()
    print(f"{'layer at batch':44} {'macs':>6} {'bytes':>6} {'dense':>6} {'best':>6} us; the best form and the others")
    for shape, tried in by_shape.items():
        high = (shape.height + 2 * shape.padding - shape.kernel) // shape.stride + 1
        wide = (shape.width + 2 * shape.padding - shape.kernel) // shape.stride + 1
        pixels = shape.batch * high * wide
        macs = pixels * shape.outputs * shape.heads * shape.keep * shape.kernel**2
        moved = (
            2 * shape.batch * (shape.channels * shape.height * shape.width + shape.outputs * shape.heads * high * wide)
        )
        x, dense = time_dense(shape)
        fine = sorted(((took, form) for took, form in tried if isinstance(took, float)), key=lambda pair: pair[0])
        failed = [(str(form), took) for took, form in tried if not isinstance(took, float)]
        parts = time_parts(shape, x, fine[0][1])
        row = {
            "shape": vars(shape) | {"dtype": str(shape.dtype)},
            "floor_macs": 2 * macs / flops / 1e12,
            "floor_bytes": moved / rate / 1e12,
            "dense": dense,
            "forms": [(str(form), took) for took, form in fine],
            "failed": failed,
            "parts": parts,
        }
        table.append(row)
        name = f"{shape.batch}x{shape.channels}@{shape.height} to {shape.outputs * shape.heads}"
        name += f" k{shape.kernel} s{shape.stride}"
        masked = next((took for took, form in fine if form == layers.MASKED), float("nan"))
        us = [row["floor_macs"], row["floor_bytes"], dense, fine[0][0]]
        print(f"{name:44} " + " ".join(f"{1e6 * value:6.1f}" for value in us), fine[0][1], end="; ")
        print(f"masked {1e6 * masked:.0f}, slowest {1e6 * fine[-1][0]:.0f}; alone:", end="")
        print("".join(f" {part} {1e6 * took:.1f}" for part, took in parts.items()), end="")
        print(f" failed {len(failed)}: {failed[0]}" if failed else "", flush=True)


@torch.no_grad()
def time_dense(shape: layers.Shape) -> tuple[torch.Tensor, float]:
    """An input, and the seconds of cuDNN's convolution of it."""
    x = torch.randn(shape.batch, shape.channels, shape.height, shape.width, device=DEVICE).to(shape.dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(shape.outputs * shape.heads, shape.channels, shape.kernel, shape.kernel, device=DEVICE)
    weight = weight.to(shape.dtype).contiguous(memory_format=torch.channels_last)
    bias = torch.zeros(len(weight), device=DEVICE, dtype=shape.dtype)
    window = ((shape.stride,) * 2, (shape.padding,) * 2, (1, 1), 1)
    try:
        return x, layers.seconds(lambda: torch.cudnn_convolution_relu(x, weight, bias, *window), DEVICE)
    except Exception as problem:
        print(f"cuDNN's fused form: {str(problem)[:100]}")
        return x, layers.seconds(lambda: nn.functional.conv2d(x, weight, bias, *window), DEVICE)


@torch.no_grad()
def time_parts(shape: layers.Shape, x: torch.Tensor, form: object) -> dict[str, float]:
    """Seconds of pooling, gate, packing and the convolution that reads what is packed, each alone."""
    from dgconv.ops.triton import dynamic_conv

    if form == layers.MASKED:
        return {}
    heads, width = shape.heads, max(1, shape.channels // (8 if shape.channels < 80 else 16))
    weights = [torch.randn(heads, width, shape.channels, device=DEVICE) for _ in range(2)]
    beta, places = torch.ones(heads, shape.channels, device=DEVICE), torch.arange(shape.channels, device=DEVICE).int()
    sums, pixels = dynamic_conv.sums(x), shape.height * shape.width
    index, gates = dynamic_conv.select(sums, pixels, *weights, beta, shape.keep, places)
    size = (shape.outputs * heads, shape.channels, shape.kernel, shape.kernel)
    weight = dynamic_conv.lay_out(
        torch.randn(size, device=DEVICE).to(x.dtype), heads, torch.arange(shape.channels, device=DEVICE)
    )
    geometry = dynamic_conv.Geometry(shape.kernel, shape.stride, shape.padding)
    arguments = (x, index, gates, weight, None, shape.keep, shape.outputs, geometry, form)
    parts = {
        "sums": lambda: dynamic_conv.sums(x),
        "gate": lambda: dynamic_conv.select(sums, pixels, *weights, beta, shape.keep, places),
        "pack": lambda: dynamic_conv.pack(x, index, gates, shape.padding, shape.keep),
        "pack and convolve": lambda: dynamic_conv.convolve(*arguments, by_head=shape.by_head),
    }
    return {name: layers.seconds(call, DEVICE) for name, call in parts.items()}


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
        self.x, self.graph = x, layers.captured(lambda: call(x), DEVICE)

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
                print(f"FAILED {name} at batch {batch}: {type(problem).__name__}: {str(problem)[:500]}", flush=True)
                results["errors"].append({"part": f"{name} {batch}", "error": traceback.format_exc()[-3000:]})
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
    rows = sorted(found.key_averages(), key=lambda event: -event.device_time_total)[:14]
    kernels = [(event.key[:80], event.count, round(event.device_time_total, 1)) for event in rows]
    results.setdefault("profile", {})[batch] = kernels
    print(f"kernels of a replay at batch {batch}: name, launches, us")
    for row in kernels:
        print("  ", *row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="small: to try the script")
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1, 32])
    parser.add_argument("--seconds", type=float, default=240, help="after which no further part is begun")
    args = parser.parse_args()
    results = Results(args.json)
    torch.backends.cudnn.benchmark = True
    side, batches = (32, [2]) if args.quick or not ON_GPU else (224, args.batches)
    results["machine"] = torch.cuda.get_device_name() if ON_GPU else "cpu"
    results["torch"] = torch.__version__
    print(results["machine"], torch.__version__, flush=True)

    with results.part("layers correct"):
        check_layers(results)
    models: list[nn.Module] = []
    with results.part("networks"):
        models += networks(side)
    with results.part("network correct"):
        x = torch.randn(2 if not ON_GPU else 8, 3, side, side, device=DEVICE)
        check_network(results, models[0], x)
    if not ON_GPU:
        return
    flops, rate = 790.0, 4.3
    with results.part("ceilings"):
        flops, rate = measure_ceilings(results)
    sparse = prepared(models[0], torch.bfloat16)
    dense = folded(models[1], torch.bfloat16)
    for batch in batches:
        x = torch.randn(batch, 3, side, side, device=DEVICE).to(torch.bfloat16)
        x = x.contiguous(memory_format=torch.channels_last)
        with results.part(f"choosing forms at batch {batch}"):
            sparse(x)
        with results.part(f"batch {batch} beside cuDNN"):
            compare(results, sparse, dense, None, x)
        with results.part(f"roofline at batch {batch}"):
            roofline(results, sparse, flops, rate)
        with results.part(f"profile at batch {batch}"):
            profile(results, sparse, x)
    for batch in batches:  # last, for compiling takes minutes
        x = torch.randn(batch, 3, side, side, device=DEVICE).to(torch.bfloat16)
        x = x.contiguous(memory_format=torch.channels_last)
        with results.part(f"batch {batch} beside all"):
            if time.monotonic() - START < args.seconds:
                compare(results, sparse, dense, compiled_form(dense, x), x)
            else:
                print(f"no time left to compile for batch {batch}")
    for row in results.get("networks", []):
        print("==", row)
    print("errors:", [entry["part"] for entry in results["errors"]], f"{time.monotonic() - START:.0f} s")


if __name__ == "__main__":
    main()
