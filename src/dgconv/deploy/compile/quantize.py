"""From a graph of floats to one of bytes: every step that has a form for bytes takes it, with the ranges that
calibration saw.

The mean error that rounded weights make on the images is taken out of the biases. Generators have weights of bytes,
too, and compute in float32, as gates do.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ..graph import (
    BOUNDS,
    Activation,
    Bound,
    ByteConv,
    ByteMean,
    BytePool,
    Bytes,
    ByteTable,
    Concat,
    Conv,
    Dequantize,
    Elementwise,
    GlobalPool,
    Graph,
    Linear,
    Norm,
    Pool,
    Quantize,
    Rescale,
    Step,
    Torch,
    reading,
    values_read,
)
from ..run import torch_steps
from ..run.integer_steps import to_bytes
from . import folding
from .calibrate import Calibration, best_bytes, bytes_of, rounded_weights, rounds_weights, takes_bytes


def quantize(calibration: Calibration, in_floats: frozenset[str] = frozenset()) -> Graph:
    """The graph in bytes, but for steps that have no such form, and those whose outputs are named."""
    return replace(_Rewriting(calibration, in_floats).graph, size=calibration.graph.size)


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
        if step.output not in self.in_floats and rounds_weights(step) and isinstance(step, Linear):
            step = self.with_bytes(step)
        self.steps.append(step)
        self.float_names[step.output] = step.output

    def with_bytes(self, step: Linear) -> Linear:
        """What a linear step reads and writes stays floats: nearly all of its time goes into reading weights."""
        weight, scale = rounded_weights(step.weight)
        bias = torch.zeros(len(weight)) if step.bias is None else step.bias
        return replace(step, weight=weight, scale=scale, bias=bias + self.calibration.bias_errors[step.output])

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
            case Elementwise() if step.activation not in BOUNDS:
                self.add_table(step, names[0], parts[0][0][0])
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
                gate=None if step.gate is None else self.calibration.gates[step.output],
                interleaved=step.interleaved,
                folded=self.is_folded(step),
                label=step.label,
                **{name: getattr(step, name) for name in copied},
            )
        )
        self.note(step.output, step.output, written)

    def is_folded(self, step: Conv) -> bool:
        seen = self.calibration.seen
        return step.gate is not None and folding.pays(step, seen[step.input].pixels, seen[step.output].pixels)

    def ranges_of(self, step: Conv) -> Parts:
        """A range for every channel of a convolution, without a search: few numbers tell too little for one."""
        seen = self.calibration.seen[step.output]
        lowest = torch.zeros_like(seen.lowest) if step.activation == "relu" else seen.lowest
        return [(bytes_of(*ends), 1) for ends in zip(lowest.tolist(), seen.highest.tolist(), strict=True)]

    def add_table(self, step: Elementwise, name: str, given: Bytes) -> None:
        numbers = (torch.arange(256) - given.zero).float() * given.scale
        result = self.range_of(step.output)
        table = to_bytes(torch_steps.ACTIVATIONS[step.activation](numbers) / result.scale, result, "identity")
        self.steps.append(ByteTable(name, step.output, table.tolist(), step.label))
        self.note(step.output, step.output)

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
        return reader.input == name and reader.other != name and reader.activation in BOUNDS
    if isinstance(reader, Pool):
        return knows_parts[reader.output] and (reader.kind == "max" or reader.padding == (0, 0))
    return isinstance(reader, Concat) and knows_parts[reader.output]
