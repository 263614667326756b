"""Random networks of bytes, and how the integer reference computes them with the choices that native gates make."""

from ctypes import byref
from random import Random

import torch
from torch import Tensor

from dgconv.deploy.compile.calibrate import rounded_gate
from dgconv.deploy.compile.freeze import fixed_gate
from dgconv.deploy.graph import (
    ByteConv,
    ByteMean,
    BytePool,
    Bytes,
    ByteTable,
    Concat,
    Dequantize,
    GateSpec,
    Graph,
    Quantize,
    Rescale,
    Step,
)
from dgconv.deploy.run import integer_steps
from dgconv.deploy.run.packed import PackedGate
from dgconv.ops.native import library

ACTIVATIONS = ("identity", "relu", "relu6")


def expected(graph: Graph, x: Tensor) -> Tensor:
    """What the reference computes. Scores are floats, in whose last bits instruction sets differ: those of the native
    gate are taken, for the same means."""
    values: dict[str, Tensor] = {graph.input: x}
    for step in graph.steps:
        if isinstance(step, Concat):
            values[step.output] = torch.cat([values[name] for name in step.inputs], 1)
        else:
            values[step.output] = integer_steps.run_step(step, values, native_select)  # type: ignore[arg-type]
    return values[graph.output]


def native_select(gate: GateSpec, means: Tensor) -> tuple[Tensor, Tensor]:
    packed = PackedGate(gate)
    heads, _, channels = gate.weight1.shape
    saliency, gates = (torch.zeros(len(means), heads, channels) for _ in range(2))
    chosen = torch.zeros(len(means), heads, channels, dtype=torch.int32)
    counts = torch.zeros(len(means), heads, dtype=torch.int32)
    scratch = torch.empty(library().dgconv_gate_scratch_floats(byref(packed.native)) + 64)
    kept, scores = torch.zeros(len(means), heads, channels, dtype=torch.bool), torch.zeros_like(saliency)
    for image, own in enumerate(means.contiguous()):
        places = (part[image].data_ptr() for part in (saliency, chosen, gates, counts))
        address = byref(packed.native)
        first, *rest = places
        if gate.scale is None:
            library().dgconv_generate(address, 1, own.data_ptr(), first, scratch.data_ptr())
        else:
            library().dgconv_generate_bytes(address, byref(packed.generator), own.data_ptr(), first, scratch.data_ptr())
        library().dgconv_select(address, 1, first, *rest, scratch.data_ptr())
        for head in range(heads):
            own_choice = chosen[image, head, : counts[image, head]].long()
            kept[image, head, own_choice] = True
            scores[image, head, own_choice] = gates[image, head, : len(own_choice)]
    return saliency if gate.fixed is None else scores, kept


def random_bytes(rng: Random) -> Bytes:
    return Bytes(2 ** rng.uniform(-8, 2), rng.choice((0, 0, 255, rng.randrange(256))))


def random_gate(rng: Random, generator: torch.Generator, channels: int, heads: int) -> GateSpec:
    hidden = rng.randint(1, 6)
    weights = [
        torch.randn(shape, generator=generator) for shape in ((heads, hidden, channels), (heads, channels, hidden))
    ]
    bias = torch.rand(heads, channels, generator=generator)
    if rng.random() < 0.15:  # all alike
        weights, bias = [torch.zeros_like(weight) for weight in weights], torch.ones_like(bias)
    gate = GateSpec(*weights, bias, keep=rng.choice((1, channels, rng.randint(1, channels))))
    if rng.random() < 0.3:
        gate = GateSpec(*weights, bias, threshold=rng.choice((0.0, 0.5, 1.0, 3.0)))
    gate = rounded_gate(gate) if rng.random() < 0.5 else gate
    if gate.keep is not None and rng.random() < 0.3:
        order = torch.rand(heads, channels, generator=generator).argsort(1)
        gate = fixed_gate(gate, order < gate.keep)
    return gate


class Builder:
    """Adds steps to values whose channels and sizes are known."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.generator = rng, torch.Generator().manual_seed(rng.randrange(2**32))
        self.shape = (rng.randint(1, 5), rng.randint(1, 12), rng.randint(1, 12))
        if rng.random() < 0.2:
            self.shape = (rng.randint(1, 5), rng.randint(12, 30), rng.randint(12, 60))
        self.steps: list[Step] = [Quantize("x", "v0", random_bytes(rng))]
        self.values = [("v0", self.shape)]

    def add(self, step: Step, shape: tuple[int, int, int]) -> None:
        self.steps.append(step)
        self.values.append((step.output, shape))

    def numbers(self, count: int, size: float = 1.0) -> Tensor:
        return size * torch.randn(count, generator=self.generator)

    def conv(self) -> None:
        rng = self.rng
        given, (channels, height, width) = rng.choice(self.values[-3:])
        kernel = (rng.choice((1, 1, 2, 3, 3, 5, 7)), rng.choice((1, 1, 3, 3, 4)))
        padding = (rng.randint(0, kernel[0]), rng.randint(0, kernel[1]))
        stride, dilation = (rng.randint(1, 3), rng.randint(1, 3)), (rng.randint(1, 2), rng.choice((1, 1, 1, 2)))
        if rng.random() < 0.5:
            kernel, padding, stride, dilation = (3, 3), (1, 1), (1, 1), (1, 1)
        extra = rng.choice(((0, 0), (0, 0), (1, 2)))
        sizes = [
            (size + 2 * pad + more - spread * (k - 1) - 1) // step + 1
            for size, pad, more, spread, k, step in zip(
                (height, width), padding, extra, dilation, kernel, stride, strict=True
            )
        ]
        if min(sizes) < 1:
            return
        form = rng.choice(("plain", "plain", "groups", "interleaved", "depthwise", "gate", "gate", "gate", "picks"))
        groups, heads = 1, rng.choice((1, 2, 3, 4, 8, 11))
        outputs = heads * rng.choice((1, 2, 3, 5, 8, 16, 17, 20, 40))
        fields = {}
        if form in ("groups", "interleaved"):
            groups = rng.choice([count for count in range(1, channels + 1) if channels % count == 0])
            outputs = groups * rng.choice((1, 2, 3, 9))
            fields = {"groups": groups, "interleaved": form == "interleaved" and groups > 1}
        elif form == "depthwise":
            groups = outputs = channels
            fields = {"groups": groups}
        elif form == "gate":
            fields = {"gate": random_gate(rng, self.generator, channels, heads), "folded": rng.random() < 0.5}
        weight = torch.randint(-127, 128, (outputs, channels // groups, *kernel), generator=self.generator).to(
            torch.int8
        )
        if form == "picks":
            picks = [sorted(rng.sample(range(channels), rng.randint(0, channels))) for _ in range(heads)]
            for head, picked in enumerate(picks):
                weight[head::heads, [c for c in range(channels) if c not in picked]] = 0
            fields = {"picks": picks}
        same = [name for name, shape in self.values if shape == (outputs, *sizes)]
        if same and rng.random() < 0.6:
            fields |= {"residual": rng.choice(same), "residual_scale": rng.uniform(-1, 1)}
        step = ByteConv(
            given,
            f"v{len(self.values)}",
            weight,
            self.numbers(outputs, 0.3 / weight[0].numel()),
            self.numbers(outputs, 40.0),
            random_bytes(rng),
            random_bytes(rng),
            stride,
            padding,
            extra,
            dilation,
            activation=rng.choice(ACTIVATIONS),
            **fields,  # type: ignore[arg-type]
        )
        self.add(step, (outputs, sizes[0], sizes[1]))

    def rescale(self) -> None:
        rng = self.rng
        given, shape = rng.choice(self.values[-3:])
        same = [name for name, other in self.values if other == shape]
        other = {"other": rng.choice(same), "other_scale": rng.uniform(-1, 1)} if rng.random() < 0.5 else {}
        order = [rng.randrange(shape[0]) for _ in range(shape[0])] if rng.random() < 0.3 else None
        numbers = self.numbers(shape[0]), self.numbers(shape[0], 40.0)
        result, activation = random_bytes(rng), rng.choice(ACTIVATIONS)
        self.add(
            Rescale(given, f"v{len(self.values)}", *numbers, result, activation=activation, order=order, **other), shape
        )

    def table(self) -> None:
        given, shape = self.rng.choice(self.values[-3:])
        table = [self.rng.randrange(256) for _ in range(256)]
        self.add(ByteTable(given, f"v{len(self.values)}", table), shape)

    def pool(self) -> None:
        rng = self.rng
        given, (channels, height, width) = rng.choice(self.values[-3:])
        kernel = (rng.randint(1, min(4, height)), rng.randint(1, min(4, width)))
        stride, padding = (rng.randint(1, 3), rng.randint(1, 3)), (rng.randint(0, kernel[0] // 2), kernel[1] // 2)
        sizes = [
            (size + 2 * pad - k) // step + 1
            for size, pad, k, step in zip((height, width), padding, kernel, stride, strict=True)
        ]
        kind = rng.choice(("max", "average"))
        step = BytePool(given, f"v{len(self.values)}", kind, kernel, stride, padding, rng.randrange(256))
        self.add(step, (channels, sizes[0], sizes[1]))

    def concat(self) -> None:
        _, shape = self.rng.choice(self.values)
        parts = [(other, size) for other, size in self.values if size[1:] == shape[1:]]
        picked = [self.rng.choice(parts) for _ in range(self.rng.randint(1, 3))]
        channels = sum(size[0] for _, size in picked)
        self.add(Concat([name for name, _ in picked], f"v{len(self.values)}"), (channels, shape[1], shape[2]))


def random_network(rng: Random) -> tuple[Graph, Tensor]:
    """A network, and images for it."""
    builder = Builder(rng)
    others = (builder.rescale, builder.pool, builder.concat, builder.table)
    for _ in range(rng.randint(1, 6)):
        rng.choice((builder.conv, builder.conv, builder.conv, *others))()
    last, _ = builder.values[-1]
    kind = rng.choice((Dequantize, ByteMean))
    builder.steps.append(kind(last, "y", random_bytes(rng)))
    x = torch.randn(rng.choice((1, 1, 2, 7)), *builder.shape, generator=builder.generator) * 2 ** rng.uniform(-4, 6)
    if rng.random() < 0.05:
        x[0, 0, 0, 0] = rng.choice((torch.nan, torch.inf, -torch.inf))
    return Graph("x", "y", builder.steps), x
