"""The layers of ``gpu_inference.py`` one by one: right or not, and what each form of each takes beside the floors."""

import contextlib
import copy
import os

import torch
from torch import nn

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from dgconv.deploy.gpu.branches import Branch
from dgconv.deploy.gpu.choice import CHOSEN, seconds
from dgconv.deploy.gpu.forms import GateShape, Shape, StemShape, candidates
from dgconv.deploy.gpu.model import GpuModel
from dgconv.layers.gate import Gate
from dgconv.ops.compile_ahead import compiling_ahead

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
LAYER_TOLERANCE = 1e-2  # of the norm; bfloat16 rounds to 4e-3


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def channels_last(*shape: int) -> torch.Tensor:
    x = torch.randn(shape, device=DEVICE).to(torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def check_layers() -> list[dict]:
    """Each form of some odd layers against float64, and whether the kept channels are those of float64."""
    from dgconv.ops.reference import dynamic_group_conv2d_reference
    from dgconv.ops.triton import dynamic_conv, planes
    from dgconv.ops.triton.selection import select
    from dgconv.ops.triton.tiles import Geometry, Tile

    rows = []
    shapes = [
        (2, 64, 64, 4, 16, 14, 3, 1),
        (3, 96, 60, 3, 24, 15, 3, 2),
        (1, 130, 48, 2, 33, 7, 1, 1),
        (2, 64, 128, 4, 1, 9, 1, 2),
        (70, 64, 64, 4, 16, 8, 3, 1),
        (1, 512, 512, 4, 128, 7, 3, 1),
    ]
    ways = ("packed", "gathered", "folded", "gated")
    tiles = [
        *(Tile(64, 16, 16, way, 4, 3) for way in ways),
        *(Tile(16, 32, 16, way, 4, 3, 8) for way in ways),
    ]
    for batch, channels, outputs, heads, keep, side, kernel, stride in shapes if ON_GPU else shapes[:1]:
        geometry = Geometry(kernel, stride, kernel // 2)
        x = channels_last(batch, channels, side, side)
        weight = torch.randn(outputs, channels, kernel, kernel, device=DEVICE).to(torch.bfloat16) / 16
        weight1 = torch.randn(heads, 8, channels, device=DEVICE)
        weight2, bias = torch.randn(heads, 8, channels, device=DEVICE), torch.ones(heads, channels, device=DEVICE)
        places = torch.randperm(channels, device=DEVICE).int()
        pooled = x.double().mean((2, 3))[:, places.long()]
        hidden = torch.relu(torch.einsum("hdc,bc->bhd", weight1.double(), pooled))
        saliency = torch.relu(torch.einsum("hdc,bhd->bhc", weight2.double(), hidden) + bias)
        order = saliency.float().argsort(dim=-1, descending=True, stable=True)[..., :keep]
        chosen = torch.zeros_like(saliency).scatter_(2, order, 1.0) * saliency
        laid_out = dynamic_conv.lay_out(weight, heads, torch.arange(channels, device=DEVICE), False)
        window, pixels = (stride, kernel // 2), geometry.output(side) ** 2
        for tile in tiles if ON_GPU else tiles[::4]:
            row: dict = {"shape": (batch, channels, outputs, heads, keep, side, kernel, stride), "tile": str(tile)}
            try:
                arrivals = dynamic_conv.arrivals_for(tile, pixels, heads, outputs // heads)
                in_memory = weight1[..., places.argsort()].contiguous()
                selected = select(planes.sums(x), side * side, in_memory, weight2, bias, keep, places, arrivals)
                own = selected.every[..., places.long()]
                expected = dynamic_group_conv2d_reference(x.double(), weight.double(), selected.every.double(), *window)
                y, sums = dynamic_conv.convolve(
                    x, selected, laid_out, None, keep, outputs // heads, geometry, tile, with_sums=True
                )
                assert sums is not None
                same = float(((own > 0) == (chosen > 0)).double().mean())
                row |= {"error": error(y, expected), "sums": error(sums.sum(1), y.float().sum((2, 3))), "same": same}
            except Exception as problem:
                row["failed"] = f"{type(problem).__name__}: {problem}"[:300]
            row["bad"] = (
                "failed" in row or not row["error"] < LAYER_TOLERANCE or not row["sums"] < 1e-2 or row["same"] < 0.999
            )
            if row["bad"]:
                print("BAD", row, flush=True)
            rows.append(row)
    print(f"layers: {len(rows)} checked, {sum(row['bad'] for row in rows)} bad", flush=True)
    return rows


@torch.no_grad()
def check_stem(side: int = 75) -> list[dict]:
    from dgconv.ops.triton import planes, stem_conv

    rows, tile = [], stem_conv.StemTile
    x, weight = channels_last(3, 3, side, side + 9), torch.randn(64, 3, 7, 7, device=DEVICE).to(torch.bfloat16) / 12
    bias = torch.randn(64, device=DEVICE)
    expected = nn.functional.max_pool2d(nn.functional.conv2d(x.double(), weight.double(), None, 2, 3), 3, 2, 1)
    expected = torch.relu(expected + bias[:, None, None])
    padded, laid_out = stem_conv.pad(x, x.dtype), stem_conv.lay_out(weight)
    tiles = [tile(64, 64, 1), tile(64, 32, 7, 4, 1), tile(64, 64, 4, 8, 2), tile(128, 64, 0), tile(64, 64, 0, 4, 1)]
    for form in tiles if ON_GPU else tiles[:1]:
        row: dict = {"tile": str(form)}
        try:
            if form.rows:
                y, sums = stem_conv.pooled(padded, laid_out, bias, "relu", x.shape[2:], 64, form)
            else:
                conv = stem_conv.convolve(padded, laid_out, x.shape[2:], 64, form)
                y, sums = planes.max_pool(conv, bias, "relu", stem_conv.POOL)
            row |= {"error": error(y, expected), "sums": error(sums.sum(1), y.float().sum((2, 3)))}
        except Exception as problem:
            row["failed"] = f"{type(problem).__name__}: {problem}"[:300]
        row["bad"] = "failed" in row or not row["error"] < LAYER_TOLERANCE or not row["sums"] < 1e-2
        print("BAD" if row["bad"] else "ok", row, flush=True)
        rows.append(row)
    return rows


class Given(Gate):
    """Keeps what it was told to."""

    def __init__(self, kept: torch.Tensor) -> None:
        super().__init__()
        self.kept = kept

    def mask(self, saliency: torch.Tensor) -> torch.Tensor:
        return self.kept


def some_forms(sparse: GpuModel, x: torch.Tensor) -> dict:
    """The first of each way in turn, so that all are in the network; to try every one would take its time."""
    calls: dict = {}
    sparse._run(x, None, calls)
    forms = {}
    for count, shape in enumerate(calls):
        first: dict = {}
        for form in candidates(shape):
            if not isinstance(form, str):
                first.setdefault(getattr(form, "way", form), form)
        forms[shape] = list(first.values())[count % len(first)]
        CHOSEN[torch.cuda.get_device_name() if ON_GPU else "", shape] = forms[shape]
    return forms


def side_by_side(sparse: GpuModel, x: torch.Tensor, forms: dict, expected: torch.Tensor) -> float:
    """How far several replays with branches side by side are from eager steps, at most."""
    graph, out = sparse._captured(x, forms, Branch(DEVICE))
    worst = 0.0
    for _ in range(10):
        graph.replay()
        worst = max(worst, error(out, expected))
    return worst


@torch.no_grad()
def check_network(model: nn.Module, sparse: GpuModel, x: torch.Tensor) -> dict[str, float]:
    """Against the original in float32 that keeps the same channels; of channels that rank alike, rounding decides.

    How far rounding leads in a network is measured, too: by the original in that precision, as torch computes it.
    """
    from dgconv.ops.triton import selection

    names = {layer.places.data_ptr(): layer.label for layer in sparse.layers.values() if hasattr(layer, "places")}
    kept, select = {}, selection.select

    def recorded(*arguments, **named):
        found = select(*arguments, **named)
        places = arguments[6]
        kept[names[places.data_ptr()].split(" + ")[0]] = found.every[..., places.long()] > 0
        return found

    forms = some_forms(sparse, x)
    if ON_GPU:
        with contextlib.suppress(Exception), compiling_ahead(DEVICE):  # what fails will do so below
            sparse._run(x, forms)
    selection.select = recorded
    try:
        actual = sparse._run(x, forms)
    finally:
        selection.select = select
    told = copy.deepcopy(model).to(DEVICE)
    agree = []
    for name, mask in kept.items():
        layer = told.get_submodule(name)
        free = layer.gate

        def compare(module, inputs, output, free=free, mask=mask):
            agree.append(float((free.mask(output) == mask).double().mean()))

        layer.generator.register_forward_hook(compare)
        layer.gate = Given(mask)
    tf32, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    expected = told(x.float())
    torch.backends.cudnn.allow_tf32 = tf32
    captured, agreement = sparse(x), list(agree)
    beside = side_by_side(sparse, x, forms, actual) if ON_GPU else None
    try:
        of_torch = error(told.to(x.dtype)(x), expected)
    except ValueError:  # it overflows
        of_torch = float("nan")
    agree = agreement
    CHOSEN.clear()  # the forms of the check are not the fastest
    return {
        "error": error(actual, expected),
        "error_of_torch": of_torch,
        "graph_as_eager": error(captured, actual),
        "side_by_side_as_eager": beside,
        "same_channels": sum(agree) / len(agree),
        "least_same_channels": min(agree),
        "layers": len(agree),
        "same_top1": float((actual.argmax(1) == expected.argmax(1)).double().mean()),
    }


def roofline(results: dict, model: GpuModel, flops: float, rate: float) -> None:
    """For each shape of layer: the floors, and what its parts and its forms take."""
    table = results.setdefault("roofline", [])
    stems = results.setdefault("stems", [])
    by_shape: dict = {}
    for shape, form, took in model.tried:
        by_shape.setdefault(shape, []).append((took, form))
    model.tried.clear()
    print("layers, us: floor of multiplications, floor of bytes, dense in cuDNN; below, the best of each way")
    for shape, tried in by_shape.items():
        fine = sorted(((took, form) for took, form in tried if isinstance(took, float)), key=lambda pair: pair[0])
        if isinstance(shape, GateShape):
            rows = [(str(form), took) for took, form in fine]
            results.setdefault("gates", []).append({"shape": str(shape), "forms": rows})
            print(f"gate {shape.batch}x{shape.channels}:", *[f"{1e6 * took:.1f} {brief(form)};" for took, form in fine])
            continue
        failed = [(str(form), took) for took, form in tried if not isinstance(took, float)]
        if isinstance(shape, StemShape):
            stems.append({"shape": str(shape), "forms": [(str(form), took) for took, form in fine], "failed": failed})
            stems[-1]["parts"] = time_stem(shape, fine)
            print(f"stem {shape.batch}:", *[f"{1e6 * took:.0f} {form};" for took, form in fine[:3]], end=" ")
            print(*[f"{1e6 * took:.0f} {form};" for took, form in fine if str(form) == "cudnn"], end=" ")
            print({part: round(1e6 * took, 1) for part, took in stems[-1]["parts"].items()}, f"failed {len(failed)}")
            continue
        pixels = shape.batch * shape.pixels
        macs = pixels * shape.outputs * shape.heads * shape.keep * shape.kernel**2
        moved = 2 * (shape.batch * shape.channels * shape.height * shape.width + pixels * shape.outputs * shape.heads)
        x, dense = time_dense(shape)
        parts = time_parts(shape, x)
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
        name = f"{shape.batch}x{shape.channels}@{shape.height} k{shape.kernel} s{shape.stride}"
        best: dict = {}
        for took, form in fine:
            best.setdefault(form if isinstance(form, str) else form.way, (took, form))
        print(
            f"{name:18}" + " ".join(f"{1e6 * value:6.1f}" for value in (row["floor_macs"], row["floor_bytes"], dense))
        )
        for way, (took, form) in best.items():
            print(f"    {way:8} {1e6 * took:7.1f}", brief(form))
        print("    alone:", *(f"{part} {1e6 * took:.1f}" for part, took in parts.items()), f"failed {len(failed)}")
        if failed:
            print("    first failure:", failed[0][0], failed[0][1][:150], flush=True)


def brief(form: object) -> str:
    if isinstance(form, str):
        return ""
    parts = vars(form)
    return " ".join(f"{name}={value}" for name, value in parts.items() if name != "way")


@torch.no_grad()
def time_dense(shape: Shape) -> tuple[torch.Tensor, float]:
    """An input, and the seconds of cuDNN's convolution of it."""
    x = channels_last(shape.batch, shape.channels, shape.height, shape.width)
    weight = channels_last(shape.outputs * shape.heads, shape.channels, shape.kernel, shape.kernel)
    bias = torch.zeros(len(weight), device=DEVICE, dtype=weight.dtype)
    window = ((shape.stride,) * 2, (shape.padding,) * 2, (1, 1), 1)
    try:
        return x, seconds(lambda: torch.cudnn_convolution_relu(x, weight, bias, *window), DEVICE)
    except Exception as problem:
        print(f"cuDNN's fused form: {str(problem)[:100]}")
        return x, seconds(lambda: nn.functional.conv2d(x, weight, bias, *window), DEVICE)


@torch.no_grad()
def time_parts(shape: Shape, x: torch.Tensor) -> dict[str, float]:
    """Seconds of pooling, gate, packing and folding, each alone."""
    from dgconv.ops.triton import dynamic_conv, planes, whole_conv
    from dgconv.ops.triton.selection import select

    heads, width = shape.heads, max(1, shape.channels // (8 if shape.channels < 80 else 16))
    weights = [torch.randn(heads, width, shape.channels, device=DEVICE) for _ in range(2)]
    beta, places = torch.ones(heads, shape.channels, device=DEVICE), torch.arange(shape.channels, device=DEVICE).int()
    sums, pixels = planes.sums(x), shape.height * shape.width
    many = torch.rand(shape.batch, max(1, pixels // 128), shape.channels, device=DEVICE)
    found = select(sums, pixels, *weights, beta, shape.keep, places)
    total = shape.outputs * heads
    weight = channels_last(total, shape.channels, shape.kernel, shape.kernel)
    whole = dynamic_conv.lay_out(weight, heads, torch.arange(shape.channels, device=DEVICE), True).whole
    parts = {
        "sums": lambda: planes.sums(x),
        "gate": lambda: select(many, pixels, *weights, beta, shape.keep, places),
        "pack": lambda: dynamic_conv.pack(x, found.index, found.gates, shape.padding, shape.keep),
    }
    if shape.batch * whole.numel() <= 1 << 27:
        parts["fold"] = lambda: whole_conv.fold(whole, found.every, True, shape.outputs)
    return {name: seconds(call, DEVICE) for name, call in parts.items()}


@torch.no_grad()
def time_stem(shape: StemShape, fine: list) -> dict[str, float]:
    """Seconds of padding, of the fused form, of the convolution alone, and of pooling alone."""
    from dgconv.ops.triton import planes, stem_conv

    x, size = channels_last(shape.batch, shape.channels, shape.height, shape.width), (shape.height, shape.width)
    weight = stem_conv.lay_out(torch.randn(shape.outputs, shape.channels, 7, 7, device=DEVICE).to(x.dtype))
    padded, bias = stem_conv.pad(x, x.dtype), torch.zeros(shape.outputs, device=DEVICE)
    parts = {"pad": seconds(lambda: stem_conv.pad(x, x.dtype), DEVICE)}
    forms = [form for _, form in fine if not isinstance(form, str)]
    if fused := next((form for form in forms if form.rows), None):
        call = lambda: stem_conv.pooled(padded, weight, bias, "relu", size, shape.outputs, fused)  # noqa: E731
        parts["fused"] = seconds(call, DEVICE)
    if plain := next((form for form in forms if not form.rows), None):
        y = stem_conv.convolve(padded, weight, size, shape.outputs, plain)
        parts["conv"] = seconds(lambda: stem_conv.convolve(padded, weight, size, shape.outputs, plain), DEVICE)
        parts["pool"] = seconds(lambda: planes.max_pool(y, bias, "relu", stem_conv.POOL), DEVICE)
    return parts
