"""From a graph of floats to one of bytes: ranges from calibration images, weights by output channel.

What every value looks like on the images decides how bytes stand for it (:class:`Bytes`): of several ranges, the one
in which a sample of its numbers changes least, by the mean square. Weights are symmetric, by output channel; the mean
error that their rounding makes on the images is taken out of the biases. Generators have weights of bytes, too, and
compute in float32, as gates do.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from ...errors import UserError
from ..graph import (
    BOUNDS,
    Activation,
    Bound,
    ByteConv,
    ByteMean,
    BytePool,
    Bytes,
    Concat,
    Conv,
    Dequantize,
    Elementwise,
    GateSpec,
    GlobalPool,
    Graph,
    Norm,
    Pool,
    Quantize,
    Rescale,
    Step,
    Torch,
    activated_apart,
    reading,
    values_read,
)
from ..rules import MOST_BYTE_CHANNELS, MOST_TERMS
from ..run import torch_steps

MOST_WEIGHT = 127
SAMPLE = 1 << 15  # numbers of a value that are looked at, of each batch
SHARES = (1.0, 0.99, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.8, 0.75, 0.7, 0.6, 0.5)  # of the range, to choose from
LEAST_RANGE = 1e-12


@dataclass
class Seen:
    """What calibration saw of a value."""

    channels: int
    lowest: Tensor  # by channel; zero is among what was seen
    highest: Tensor
    samples: list[Tensor] = field(default_factory=list)

    @property
    def least(self) -> float:
        return float(self.lowest.min())

    @property
    def most(self) -> float:
        return float(self.highest.max())

    def see(self, value: Tensor) -> None:
        self.lowest = torch.minimum(self.lowest, value.amin((0, 2, 3)))
        self.highest = torch.maximum(self.highest, value.amax((0, 2, 3)))
        flat = value.flatten()
        self.samples.append(flat[:: max(1, len(flat) // SAMPLE)].clone())


@dataclass
class Calibration:
    """Of a graph that was made plain: what was seen of its values, and the errors of weights that were rounded."""

    graph: Graph
    seen: dict[str, Seen]
    bias_errors: dict[str, Tensor]  # by output of a convolution: what its rounded weights lack on average


def plain(graph: Graph) -> Graph:
    """The same function, in which norms before a convolution or pooling are steps of their own, and each is alone."""
    steps: list[Step] = []
    for step in graph.steps:
        if isinstance(step, Conv) and step.expansion is not None:
            name = f"{step.output} expanded"
            steps += activated_apart(replace(step.expansion, output=name))
            step = replace(step, input=name, expansion=None)
        if isinstance(step, Conv | Pool | GlobalPool) and step.before is not None and not _is_winners(step):
            name = f"{step.output} normalized"
            norm = replace(step.before, activation="identity")
            steps.append(Elementwise(step.input, name, norm, activation=step.before.activation, label=step.label))
            step = replace(step, input=name, before=None)
        steps += activated_apart(step)
    return replace(graph, steps=steps)


def calibrate(graph: Graph, batches: Iterable[Tensor]) -> Calibration:
    """Runs images through a plain graph, with torch."""
    rounded = {
        step.output: _rounding_error(step) for step in graph.steps if isinstance(step, Conv) and takes_bytes(step)
    }
    seen: dict[str, Seen] = {}
    errors: dict[str, list[Tensor]] = {}
    for x in batches:
        values: dict[str, Any] = {graph.input: x}
        _see(seen, graph.input, x)
        last_reads = {name: at for at, step in enumerate(graph.steps) for name in values_read(step)}
        for at, step in enumerate(graph.steps):
            if isinstance(step, Conv) and step.output in rounded:
                error = torch_steps.conv(rounded[step.output], values[step.input], None)
                errors.setdefault(step.output, []).append(error.mean((0, 2, 3)))
            values[step.output] = torch_steps.run_step(step, values)
            _see(seen, step.output, values[step.output])
            for name in values_read(step):
                if last_reads[name] == at and name != graph.output:
                    values.pop(name, None)
    if not seen:
        raise UserError("there are no calibration images; give some that are like those the network will see")
    return Calibration(graph, seen, {name: torch.stack(parts).mean(0) for name, parts in errors.items()})


def _see(seen: dict[str, Seen], name: str, value: Any) -> None:
    if not isinstance(value, Tensor) or value.dim() != 4 or value.dtype != torch.float32 or not value.numel():
        return
    if not torch.isfinite(value).all():
        raise UserError(
            f"a calibration image makes {name!r} NaN or infinite; give images as the network was trained on, normalized"
        )
    if name not in seen:
        channels = value.shape[1]
        seen[name] = Seen(channels, torch.zeros(channels), torch.zeros(channels))
    seen[name].see(value)


def _rounding_error(conv: Conv) -> Conv:
    """The convolution whose weights are what rounding takes away."""
    whole, scales = rounded_weights(conv.weight)
    error = conv.weight - whole.float() * scales[:, None, None, None]
    return replace(conv, weight=error, bias=None, residual=None, activation="identity")


def rounded_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights as integers, and the scale of each output."""
    most = weight.abs().amax((1, 2, 3))
    scales = (most / MOST_WEIGHT).clamp_min(LEAST_RANGE)
    return (weight / scales[:, None, None, None]).round().clamp(-MOST_WEIGHT, MOST_WEIGHT).to(torch.int8), scales


def rounded_gate(gate: GateSpec) -> GateSpec:
    """The gate with a generator of bytes: both weights of a hidden unit have one scale, and it is their product."""
    scale1, scale2 = (
        (weight.abs().amax(dim, keepdim=True) / MOST_WEIGHT).clamp_min(LEAST_RANGE)
        for weight, dim in ((gate.weight1, 2), (gate.weight2, 1))
    )
    weight1, weight2 = (gate.weight1 / scale1).round(), (gate.weight2 / scale2).round()
    return replace(
        gate,
        weight1=weight1.to(torch.int8),
        weight2=weight2.to(torch.int8),
        scale=scale1.squeeze(2) * scale2.squeeze(1),
    )


def takes_bytes(step: Step) -> bool:
    """Whether there is a form for bytes."""
    if isinstance(step, Conv):
        terms = step.weight[0].numel()
        channels = max(len(step.weight), step.weight.shape[1] * step.groups)
        return not _is_winners(step) and not step.same and terms <= MOST_TERMS and channels <= MOST_BYTE_CHANNELS
    if isinstance(step, Elementwise):
        if step.factor is not None or step.activation not in BOUNDS:
            return False
        return step.norm is None or step.norm.activation == "identity" or step.other is None
    return isinstance(step, Pool | GlobalPool | Concat)


def _is_winners(step: Step) -> bool:
    return isinstance(step, Conv) and step.boost is not None


def quantize(calibration: Calibration, in_floats: frozenset[str] = frozenset()) -> Graph:
    """The graph in bytes, but for steps that have no such form, and those whose outputs are named."""
    return replace(_Rewriting(calibration, in_floats).graph, size=calibration.graph.size)


def best_bytes(least: float, most: float, samples: list[Tensor]) -> Bytes:
    """The range whose rounding changes the samples least."""
    if most - least < LEAST_RANGE:
        return Bytes(1.0, 0)
    numbers = torch.cat(samples).double()
    candidates = [_bytes_of(share * least, share * most) for share in SHARES]

    def error(bytes: Bytes) -> float:
        stored = (numbers / bytes.scale).round().add(bytes.zero).clamp(0, 255)
        return float(((stored - bytes.zero) * bytes.scale - numbers).square().mean())

    return min(candidates, key=error)


def _bytes_of(least: float, most: float) -> Bytes:
    """Zero is a byte exactly: it is what the padding is made of."""
    scale = max((most - least) / 255, LEAST_RANGE)
    return Bytes(scale, min(255, max(0, round(-least / scale))))


Parts = list[tuple[Bytes, int]]  # of the channels of a value, one behind the other: those that stand for numbers alike


class _Rewriting:
    def __init__(self, calibration: Calibration, in_floats: frozenset[str]) -> None:
        self.calibration, self.old = calibration, calibration.graph
        self.in_floats = in_floats
        self.steps: list[Step] = []
        self.parts: dict[str, Parts] = {}  # of values that there are in bytes
        self.byte_names: dict[str, str] = {}
        self.float_names: dict[str, str] = {self.old.input: self.old.input}
        self.alike, self.is_read_by_channel = _alike(self.old)
        self.last_reads = {name: at for at, step in enumerate(self.old.steps) for name in values_read(step)}
        self.last_reads[self.old.output] = len(self.old.steps)
        for at, step in enumerate(self.old.steps):
            self.take(step, at)
        self.graph = Graph(self.old.input, self.floats(self.old.output), self.steps)

    def take(self, step: Step, at: int) -> None:
        if isinstance(step, Torch):
            self.leave_bytes(at)
        if step.output not in self.in_floats and takes_bytes(step) and self.in_bytes(step):
            return
        step = reading(step, {name: self.floats(name) for name in values_read(step)})
        self.steps.append(step)
        self.float_names[step.output] = step.output

    def leave_bytes(self, at: int) -> None:
        """Torch takes floats; what is read after it, too, is passed on as floats."""
        for name in list(self.byte_names):
            if self.last_reads.get(name, -1) >= at:
                self.floats(name)
        self.byte_names.clear()

    def floats(self, name: str) -> str:
        """The value as floats."""
        if name not in self.float_names:
            made = f"{name} as floats"
            (bytes, _), *others = self.parts[name]
            if others:  # bytes as they are, and then what they stand for
                scale, zero = _by_channel(self.parts[name])
                norm = Norm(scale.float(), (-zero * scale).float())
                self.steps.append(Dequantize(self.byte_names[name], f"{name} as they are", Bytes(1.0, 0), label=name))
                self.steps.append(Elementwise(f"{name} as they are", made, norm, label=name))
            else:
                self.steps.append(Dequantize(self.byte_names[name], made, bytes, label=name))
            self.float_names[name] = made
        return self.float_names[name]

    def bytes(self, name: str) -> tuple[str, Parts] | None:
        """The value as bytes; None if nothing was seen of it."""
        if name not in self.byte_names:
            if name not in self.calibration.seen:
                return None
            made = f"{name} as bytes"
            self.steps.append(Quantize(self.floats(name), made, self.range_of(name), label=name))
            self.note(name, made)
        return self.byte_names[name], self.parts[name]

    def range_of(self, name: str, activation: Activation = "identity") -> Bytes:
        group = [self.calibration.seen[other] for other in self.alike[name]]
        samples = [sample for seen in group for sample in seen.samples]
        least = 0.0 if activation != "identity" else min(seen.least for seen in group)
        return best_bytes(least, max(seen.most for seen in group), samples)

    def note(self, name: str, made: str, parts: Parts | None = None) -> None:
        channels = self.calibration.seen[name].channels
        self.byte_names[name] = made
        self.parts[name] = parts or [(self.range_of(name), channels)]

    def in_bytes(self, step: Step) -> bool:
        """Adds the form for bytes, if there is one."""
        given = [self.bytes(name) for name in values_read(step)]
        is_seen = step.output in self.calibration.seen or isinstance(step, GlobalPool)
        if not is_seen or any(value is None for value in given):
            return False
        names, parts = zip(*(value for value in given if value is not None), strict=True)
        match step:
            case Conv():
                self.add_conv(step, names, parts)
            case Elementwise():
                self.add_rescale(step, names, parts)
            case Pool():
                zero = parts[0][0][0].zero
                fields = {
                    name: getattr(step, name) for name in ("output", "kind", "kernel", "stride", "padding", "label")
                }
                self.steps.append(BytePool(names[0], zero=zero, **fields))
                self.note(step.output, step.output, parts[0])
            case GlobalPool():
                self.steps.append(ByteMean(names[0], step.output, parts[0][0][0], label=step.label))
                self.float_names[step.output] = step.output
            case Concat():
                self.steps.append(replace(step, inputs=list(names)))
                self.note(step.output, step.output, [part for value in parts for part in value])
        return True

    def add_conv(self, step: Conv, names: tuple[str, ...], parts: tuple[Parts, ...]) -> None:
        given, result = parts[0][0][0], self.range_of(step.output)
        weight, scales = rounded_weights(step.weight)
        written: Parts = [(result, len(weight))]
        steps = torch.full((len(weight),), result.scale, dtype=torch.float64)  # of a byte, by channel
        bias = torch.zeros(len(weight)) if step.bias is None else step.bias
        bias = (bias + self.calibration.bias_errors[step.output]).double()
        if step.output in self.is_read_by_channel and step.activation != "relu6" and step.residual is None:
            written = self.ranges_of(step)
            steps, zeros = _by_channel(written)
            result = Bytes(1.0, 0)  # what bytes stand for is in the numbers of each channel
            bias = bias + zeros * steps
        bias = bias / steps
        residual_scale = 0.0
        if step.residual is not None:
            added = parts[1][0][0]
            residual_scale = added.scale / result.scale
            bias = bias - added.zero * residual_scale
        copied = ("output", "stride", "padding", "extra_padding", "dilation", "groups", "picks", "activation")
        self.steps.append(
            ByteConv(
                names[0],
                weight=weight,
                multiplier=(scales.double() * given.scale / steps).float(),
                bias=bias.float(),
                given=given,
                result=result,
                residual=names[1] if step.residual is not None else None,
                residual_scale=residual_scale,
                gate=None if step.gate is None else rounded_gate(step.gate),
                interleaved=step.interleaved,
                label=step.label,
                **{name: getattr(step, name) for name in copied},
            )
        )
        self.note(step.output, step.output, written)

    def ranges_of(self, step: Conv) -> Parts:
        """A range for every channel of a convolution, without a search: few numbers tell too little for one."""
        seen = self.calibration.seen[step.output]
        lowest = torch.zeros_like(seen.lowest) if step.activation == "relu" else seen.lowest
        return [(_bytes_of(*ends), 1) for ends in zip(lowest.tolist(), seen.highest.tolist(), strict=True)]

    def add_rescale(self, step: Elementwise, names: tuple[str, ...], parts: tuple[Parts, ...]) -> None:
        result = self.range_of(step.output)
        scale, zero = _by_channel(parts[0])
        if step.order is not None:
            scale, zero = scale[step.order], zero[step.order]
        shift = -zero * scale
        activation = cast(Bound, step.activation)
        if step.norm is not None:
            scale, shift = scale * step.norm.scale, shift * step.norm.scale + step.norm.shift
            activation = both(step.norm.activation, activation)
        other_scale = 0.0
        if step.other is not None:
            added = parts[1][0][0]
            other_scale = added.scale / result.scale
            shift = shift - added.zero * added.scale
        rescale = Rescale(
            names[0],
            step.output,
            (scale / result.scale).float(),
            (shift / result.scale).float(),
            result,
            names[1] if step.other is not None else None,
            other_scale,
            activation,
            step.order,
            step.label,
        )
        self.steps.append(rescale)
        self.note(step.output, step.output, [(result, len(scale))])


def both(first: Bound, then: Bound) -> Bound:
    """One activation after another."""
    return "relu6" if "relu6" in (first, then) else "relu" if "relu" in (first, then) else "identity"


def _by_channel(parts: Parts) -> tuple[Tensor, Tensor]:
    scales = [torch.full((count,), bytes.scale, dtype=torch.float64) for bytes, count in parts]
    zeros = [torch.full((count,), bytes.zero, dtype=torch.float64) for bytes, count in parts]
    return torch.cat(scales), torch.cat(zeros)


def _alike(graph: Graph) -> tuple[dict[str, list[str]], set[str]]:
    """Of each value, those that have to stand for numbers as it does: where parts that were joined are read by a step
    that knows one scale only. And the values all of whose readers know a scale for each channel."""
    groups: dict[str, list[str]] = {name: [name] for name in [graph.input, *(step.output for step in graph.steps)]}

    def join(one: str, other: str) -> None:
        if groups[one] is not groups[other]:
            groups[one] += groups[other]
            for name in groups[other]:
                groups[name] = groups[one]

    readers: dict[str, list[Step]] = {}
    for step in graph.steps:
        for name in values_read(step):
            readers.setdefault(name, []).append(step)
    knows_parts: dict[str, bool] = {}  # whether all who read a value know a scale for each channel
    for step in reversed(graph.steps):
        name = step.output
        known = (_knows_parts(reader, name, knows_parts) for reader in readers.get(name, []))
        knows_parts[name] = name != graph.output and all(known)
    for step in graph.steps:
        if isinstance(step, Concat) and not knows_parts[step.output]:
            for part in step.inputs:
                join(step.output, part)
        if isinstance(step, Pool) and not knows_parts[step.output]:
            join(step.output, step.input)
    return groups, {name for name, is_known in knows_parts.items() if is_known}


def _knows_parts(reader: Step, name: str, knows_parts: dict[str, bool]) -> bool:
    if isinstance(reader, Elementwise):
        return reader.input == name and reader.other != name
    if isinstance(reader, Pool):
        return knows_parts[reader.output] and (reader.kind == "max" or reader.padding == (0, 0))
    return isinstance(reader, Concat) and knows_parts[reader.output]


def iterate(batches: Any, channels: int | None) -> Iterator[Tensor]:
    """Images out of a tensor, or of batches with or without labels; a ``UserError`` where they are none."""
    if isinstance(batches, Tensor):
        batches = batches.split(16)
    count = 0
    for batch in batches:
        x = batch[0] if isinstance(batch, tuple | list) else batch
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
            kind = f"a tensor of shape {list(x.shape)}, {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
            raise UserError(f"calibration images are batches [B, C, height, width] of floats, got {kind}")
        if channels is not None and x.shape[1] != channels:
            raise UserError(f"calibration images have {x.shape[1]} channels, and the network takes {channels}")
        count += len(x)
        if len(x):
            yield x.detach().to("cpu", torch.float32)
    if not count:
        raise UserError("there are no calibration images; give some that are like those the network will see")
