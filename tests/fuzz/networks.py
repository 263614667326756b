"""Random networks that are valid, of few and small steps of every kind; and real ones, prepared from models."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from dgconv import convert_, deploy
from dgconv.deploy.storage import to_bytes
from dgconv.deploy.weights import from_bytes
from dgconv.layers import FeatureBoostingConv2d, StandardGroupConv2d
from dgconv.layers.indexed import IndexedGroupConv2d
from tests.fuzz.graphs import Json, Stored, boost, call, conv, gate, graph, listed, norm, pair, slot, tensor

CHANNELS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 20, 24, 32, 33, 40)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 16, 17, 20)
BOUNDS = ("identity", "identity", "relu", "relu6")
SMOOTH = ("silu", "hard_swish", "hard_sigmoid", "sigmoid", "tanh", "gelu", "gelu_tanh")
ACTIVATIONS = (*BOUNDS, *BOUNDS, *BOUNDS, *SMOOTH)
Shape = tuple[int, ...]  # of one image


@dataclass
class Draft:
    """A network that grows step by step."""

    rng: Random
    shape: Shape
    steps: list[Json] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Shape] = field(default_factory=dict)

    def weight(self, *shape: int) -> str:
        """Small whole numbers, so that sums are exact; now and then any numbers."""
        name = f"t{len(self.tensors)}"
        generator = torch.Generator().manual_seed(self.rng.getrandbits(32))
        if self.rng.random() < 0.1:
            self.tensors[name] = torch.randn(shape, generator=generator)
        else:
            self.tensors[name] = torch.randint(-2, 3, shape, generator=generator).float()
        return name

    def bytes(self, *shape: int) -> str:
        """Weights that a scale goes with."""
        name = self.weight(*shape)
        self.tensors[name] = self.tensors[name].to(torch.int8)
        return name

    def maybe(self, chance: float, make: Callable[[], Any]) -> Any:
        return make() if self.rng.random() < chance else None

    def add(self, step: Json, shape: Shape) -> None:
        step["output"] = name = f"v{len(self.steps)}"
        self.steps.append({key: value for key, value in step.items() if value is not None})
        self.values[name] = shape

    def pick(self, dimensions: int) -> tuple[str, Shape] | None:
        """A value of planes or of rows, rather a late one."""
        found = [(name, shape) for name, shape in self.values.items() if len(shape) == dimensions]
        return self.rng.choice(found[-3:] if self.rng.random() < 0.8 else found) if found else None

    def like(self, shape: Shape) -> str | None:
        found = [name for name, other in self.values.items() if other == shape]
        return self.rng.choice(found) if found else None

    def norm(self, channels: int) -> Json:
        return norm(self.weight(channels), self.weight(channels), self.rng.choice(BOUNDS))


def valid(rng: Random) -> Stored:
    """A network whose every step fits the others."""
    shape = (rng.choice(CHANNELS), rng.choice(SIZES), rng.choice(SIZES))
    draft = Draft(rng, shape, values={"x": shape})
    for _ in range(rng.choice((1, 1, 2, 3, 4, 6))):
        rng.choice(STEPS)(draft)
    if not draft.steps:
        _elementwise(draft)
    batch = rng.choice((1, 1, 1, 2, 3))
    made = graph(draft.steps, "x", rng.choice(list(draft.values)[-2:]))
    return Stored(made, draft.tensors or {"t": torch.zeros(1)}, (batch, *shape), rng.getrandbits(16))


def _window(draft: Draft, size: Shape, kernel: tuple[int, int], dilation: tuple[int, int]) -> tuple[Json, Shape]:
    """Stride and padding with which a window fits, and the height and width of the result."""
    rng = draft.rng
    stride = [rng.choice((1, 1, 1, 2, 3)) for _ in range(2)]
    extra = [rng.choice((0, 0, 0, 1)) for _ in range(2)]
    fields, result = {}, []
    padding = []
    for axis in range(2):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        least = max(0, -(-(reach - size[axis] - extra[axis]) // 2))
        padding.append(max(least, rng.choice((0, 0, reach // 2, reach // 2, 1, 5))))
        result.append((size[axis] + 2 * padding[axis] + extra[axis] - reach) // stride[axis] + 1)
    for name, value in (("stride", stride), ("padding", padding), ("extra_padding", extra), ("dilation", dilation)):
        fields[name] = pair(*value)
    return fields, tuple(result)


def _conv(draft: Draft) -> None:
    rng = draft.rng
    name, (channels, *size) = draft.pick(3) or ("x", draft.shape)
    kernel = rng.choice(((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (2, 3), (1, 7), (6, 1)))
    dilation = rng.choice(((1, 1), (1, 1), (1, 1), (2, 2), (1, 3)))
    fields, (height, width) = _window(draft, tuple(size), kernel, dilation)
    kind = rng.choice(("static", "static", "depthwise", "groups", "gate", "picks", "boost"))
    outputs, groups, inputs = rng.choice(CHANNELS), 1, channels
    if kind == "depthwise":
        outputs = groups = channels
        inputs = 1
    elif kind == "groups":
        groups = rng.choice([count for count in range(1, channels + 1) if channels % count == 0])
        inputs, outputs = channels // groups, groups * rng.choice((1, 2, 3, 5, 8))
        fields["interleaved"] = rng.random() < 0.3
    elif kind == "gate":
        outputs = _gate(draft, fields, channels)
    elif kind == "boost":
        keep = rng.randint(1, outputs)
        fields["boost"] = boost(draft.weight(outputs, channels), draft.weight(outputs), draft.weight(outputs), keep)
    weight = draft.weight(outputs, inputs, *kernel)
    if kind == "picks":
        heads = rng.choice([count for count in range(1, outputs + 1) if outputs % count == 0])
        picks = [sorted(rng.sample(range(channels), rng.randint(0, channels))) for _ in range(heads)]
        for head, picked in enumerate(picks):
            left = [channel for channel in range(channels) if channel not in picked]
            draft.tensors[weight][head::heads, left] = 0
        fields["picks"] = listed(*(listed(*picked) for picked in picks))
    shape = (outputs, height, width)
    activation = rng.choice(BOUNDS if kind == "boost" else ACTIVATIONS)
    if rng.random() < 0.15:
        fields |= {"same": True, "padding": pair(0, 0), "extra_padding": pair(0, 0)}
        height, width = (-(-extent // step) for extent, step in zip(size, fields["stride"]["tuple"], strict=True))
    step = conv(name, "", weight, groups=groups, activation=activation, **fields)
    step["bias"] = draft.maybe(0.5, lambda: tensor(draft.weight(outputs)))
    step["before"] = draft.maybe(0.25, lambda: draft.norm(channels))
    step["residual"] = draft.maybe(0.4, lambda: draft.like(shape))
    draft.add(step, shape)


def _gate(draft: Draft, fields: Json, channels: int) -> int:
    """The gate of a dynamic convolution; returns how many outputs it may have."""
    rng = draft.rng
    heads, hidden = rng.choice((1, 2, 3, 4, 8)), rng.choice((1, 2, 4, 17))
    limits: Json = (
        {"keep": rng.randint(1, channels)} if rng.random() < 0.7 else {"threshold": rng.choice((0.0, 1.0, 2.5))}
    )
    scored = channels
    if "keep" in limits and rng.random() < 0.3:
        scored = limits["keep"]
        limits["fixed"] = listed(*(listed(*sorted(rng.sample(range(channels), scored))) for _ in range(heads)))
    names = (
        draft.weight(heads, hidden, channels),
        draft.weight(heads, scored, hidden),
        draft.weight(heads, scored),
    )
    fields["gate"] = gate(*names, **limits)
    return heads * rng.choice((1, 2, 3, 4, 9, 16))


def _expansion(draft: Draft) -> None:
    rng = draft.rng
    name, (channels, *size) = draft.pick(3) or ("x", draft.shape)
    middle = rng.choice(CHANNELS[6:])
    kernel = rng.choice(((1, 1), (1, 1), (3, 3), (2, 2)))
    fields, between = _window(draft, tuple(size), kernel, (1, 1))
    first = conv(name, "between", draft.weight(middle, channels, *kernel), activation=rng.choice(ACTIVATIONS), **fields)
    first["bias"] = tensor(draft.weight(middle)) if rng.random() < 0.5 else None
    kernel = rng.choice(((3, 3), (3, 3), (5, 5), (1, 1)))
    fields, (height, width) = _window(draft, between, kernel, (1, 1))
    step = conv(name, "", draft.weight(middle, 1, *kernel), groups=middle, activation=rng.choice(ACTIVATIONS), **fields)
    draft.add({**step, "expansion": first}, (middle, height, width))


def _pool(draft: Draft) -> None:
    rng = draft.rng
    name, (channels, *size) = draft.pick(3) or ("x", draft.shape)
    kernel = [rng.choice((1, 2, 3, 3, 5)) for _ in range(2)]
    stride = [rng.choice((1, 2, 2, 3)) for _ in range(2)]
    padding = [
        max(rng.choice((0, count // 2)), max(0, -(-(count - extent) // 2)))
        for count, extent in zip(kernel, size, strict=True)
    ]
    if any(2 * pad > count for pad, count in zip(padding, kernel, strict=True)):
        return
    kind = rng.choice(("max", "average"))
    step = {"type": "Pool", "input": name, "kind": kind, "kernel": pair(*kernel), "stride": pair(*stride)}
    result = [
        (extent + 2 * pad - count) // step + 1
        for extent, pad, count, step in zip(size, padding, kernel, stride, strict=True)
    ]
    before = draft.maybe(0.3, lambda: draft.norm(channels))
    draft.add({**step, "padding": pair(*padding), "before": before}, (channels, *result))


def _global_pool(draft: Draft) -> None:
    name, shape = draft.pick(3) or ("x", draft.shape)
    before = draft.maybe(0.3, lambda: draft.norm(shape[0]))
    draft.add({"type": "GlobalPool", "input": name, "before": before}, shape[:1])


def _linear(draft: Draft) -> None:
    if (found := draft.pick(1)) is None:
        return
    name, (features,) = found
    outputs = draft.rng.choice(CHANNELS)
    bias = draft.maybe(0.5, lambda: tensor(draft.weight(outputs)))
    scale = draft.maybe(0.3, lambda: tensor(draft.weight(outputs)))
    weight = tensor(draft.bytes(outputs, features) if scale else draft.weight(outputs, features))
    fields = {"weight": weight, "bias": bias, "scale": scale, "activation": draft.rng.choice(ACTIVATIONS)}
    draft.add({"type": "Linear", "input": name, **fields}, (outputs,))


def _elementwise(draft: Draft) -> None:
    rng = draft.rng
    name, shape = (draft.pick(1) if rng.random() < 0.2 else None) or draft.pick(3) or ("x", draft.shape)
    step = {"type": "Elementwise", "input": name, "activation": rng.choice(ACTIVATIONS)}
    step["factor"] = draft.maybe(0.5, lambda: draft.like(shape[:1]))
    step["norm"] = None if step["factor"] else draft.maybe(0.5, lambda: draft.norm(shape[0]))
    step["other"] = draft.maybe(0.5, lambda: draft.like(shape))
    step["order"] = draft.maybe(0.3, lambda: listed(*(rng.randrange(shape[0]) for _ in range(shape[0]))))
    draft.add(step, shape)


def _concat(draft: Draft) -> None:
    name, shape = draft.pick(3) or ("x", draft.shape)
    fitting = [other for other, extent in draft.values.items() if extent[1:] == shape[1:] and len(extent) == len(shape)]
    parts = [name, *draft.rng.choices(fitting, k=draft.rng.randint(0, 3))]
    channels = sum(draft.values[part][0] for part in parts)
    if channels <= 100:
        draft.add({"type": "Concat", "inputs": listed(*parts)}, (channels, *shape[1:]))


def _layer_norm(draft: Draft) -> None:
    name, shape = (draft.pick(1) if draft.rng.random() < 0.3 else None) or draft.pick(3) or ("x", draft.shape)
    parts = {part: tensor(draft.weight(shape[0])) for part in ("scale", "shift")}
    draft.add({"type": "LayerNorm", "input": name, "epsilon": draft.rng.choice((0.5, 1.0)), **parts}, shape)


def _resize(draft: Draft) -> None:
    rng = draft.rng
    name, shape = draft.pick(3) or ("x", draft.shape)
    step = {"type": "Resize", "input": name, "kind": rng.choice(("nearest", "bilinear"))}
    step["aligns_corners"] = rng.random() < 0.4
    size: Any = (rng.choice(SIZES), rng.choice(SIZES))
    match rng.randrange(3):
        case 0:
            step["size"] = pair(*size)
        case 1:
            factors = [rng.choice((1.0, 2.0, 2.5, 3.0)) for _ in range(2)]
            step["scale"], size = pair(*factors), [int(e * f) for e, f in zip(shape[1:], factors, strict=True)]
        case 2:
            like, (_, *size) = draft.pick(3) or ("x", draft.shape)
            step["like"] = like
    if size[0] * size[1] <= 3000:
        draft.add(step, (shape[0], *size))


def _pad(draft: Draft) -> None:
    rng = draft.rng
    name, (channels, height, width) = draft.pick(3) or ("x", draft.shape)
    top, left, bottom, right = (rng.choice((0, 1, 2, 5)) for _ in range(4))
    step = {"type": "Pad", "input": name, "padding": pair(top, left), "end_padding": pair(bottom, right)}
    draft.add(step, (channels, height + top + bottom, width + left + right))


def _slice(draft: Draft) -> None:
    name, shape = (draft.pick(1) if draft.rng.random() < 0.2 else None) or draft.pick(3) or ("x", draft.shape)
    first = draft.rng.randrange(shape[0])
    count = draft.rng.randint(1, shape[0] - first)
    draft.add({"type": "Slice", "input": name, "first": first, "count": count}, (count, *shape[1:]))


def _left_to_torch(draft: Draft) -> None:
    rng = draft.rng
    name, shape = draft.pick(3) or ("x", draft.shape)
    channels, height, width = shape
    made = rng.choice(
        (
            lambda: (call([name], "", "functional.silu", slot(0)), shape),
            lambda: (call([name], "", "torch.sigmoid", slot(0)), shape),
            lambda: (call([name], "", "operator.mul", slot(0), 2), shape),
            lambda: (call([name], "", "operator.add", slot(0), tensor(draft.weight(channels, 1, 1))), shape),
            lambda: (call([name], "", "functional.interpolate", slot(0), pair(5, 7)), (channels, 5, 7)),
            lambda: (
                call([name], "", "functional.pad", slot(0), listed(1, 1, 2, 0)),
                (channels, height + 2, width + 2),
            ),
            lambda: (call([name], "", "Tensor.flatten", slot(0), 1), (channels * height * width,)),
            lambda: (call([name], "", "Tensor.size", slot(0)), (0, 0)),
            lambda: (call([name], "", "torch.cat", listed(slot(0), slot(0)), 1), (2 * channels, height, width)),
            lambda: (call([name], "", "Tensor.expand", slot(0), -1, -1, height, width), shape),
            lambda: (call([name], "", "functional.avg_pool2d", slot(0), 1), shape),
            lambda: (call([name], "", "torch.chunk", slot(0), 2, 1), (0, 0)),
            lambda: (call([name], "", "functional.softmax", slot(0), 1), shape),
            lambda: (call([name], "", "Tensor.permute", slot(0), 0, 1, 3, 2), (channels, width, height)),
        )
    )
    draft.add(*made())


STEPS = (
    *(_conv, _conv, _conv, _conv, _conv, _expansion, _pool, _global_pool, _linear, _elementwise, _concat),
    *(_layer_norm, _resize, _pad, _slice, _left_to_torch),
)


class _Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(11, 6, 1)
        self.norm = nn.BatchNorm2d(17)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.first(x)], 1)
        x = torch.cat([x, self.second(x)], 1)
        return self.norm(x).relu().mean((2, 3))


class _Excited(nn.Module):
    """A block with squeeze and excitation, and an addition."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.down, self.up = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.silu(self.first(x))
        scale = torch.sigmoid(self.up(nn.functional.silu(self.down(y.mean((2, 3), keepdim=True)))))
        return (self.second(y * scale) + x).flatten(1)


class _Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        left, right = y.chunk(2, 1)
        return {"left": left, "both": [(y, right), {"size": 4}]}


def _models() -> list[tuple[nn.Module, Shape]]:
    plain = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    dynamic = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1))
    convert_(dynamic)
    inverted = nn.Sequential(
        *(nn.Conv2d(4, 24, 1), nn.BatchNorm2d(24), nn.ReLU6()),
        *(nn.Conv2d(24, 24, 3, 1, 1, groups=24), nn.ReLU6(), nn.Conv2d(24, 4, 1)),
    )
    boosting = nn.Sequential(
        *(FeatureBoostingConv2d(3, 16, 3, padding=1, density=0.4), nn.ReLU()),
        *(FeatureBoostingConv2d(16, 8, 3, padding=1, density=0.4), nn.ReLU()),
    )
    index = torch.tensor([0, 3, 1, 5, 2, 7, 0, 6])
    indexed = IndexedGroupConv2d(nn.Conv2d(8, 16, 3, padding=1), index, torch.ones(16, 2, 3, 3), None, 4)
    grouped = nn.Sequential(StandardGroupConv2d(8, 8, 1, groups=4), indexed)
    small = (2, 3, 9, 8)
    return [
        (plain, small),
        (dynamic, small),
        (inverted, (1, 4, 7, 6)),
        (boosting, (2, 3, 8, 8)),
        (grouped, (2, 8, 6, 5)),
        (_Dense(), small),
        (_Excited(), (2, 4, 6, 6)),
        (_Several(), small),
        (nn.Sequential(nn.Conv2d(3, 8, 1), nn.Upsample(scale_factor=2), nn.PixelShuffle(2), nn.PReLU(2)), small),
        (nn.Sequential(nn.Conv2d(3, 8, 1), nn.ConvTranspose2d(8, 4, 3, 2), nn.GroupNorm(2, 4)), small),
    ]


@cache
def real() -> list[str]:
    """Networks that :func:`dgconv.deploy.save` wrote, as text."""
    from tests.fuzz.graphs import store

    found = []
    for number, (model, shape) in enumerate(_models()):
        torch.manual_seed(number)
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(torch.randint(-2, 3, value.shape))
        content, weights = to_bytes(deploy.prepare(model.eval()))
        tensors = dict(from_bytes(weights).tensors)
        found.append(store(Stored(json.loads(content)["graph"], tensors, shape, number)).decode())
    return found
