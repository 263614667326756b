"""What calibration images tell of a network in floats: the ranges of its values, and what rounded weights lack.

What every value looks like decides how bytes stand for it (:class:`Bytes`): of several ranges, the one in which a
sample of its numbers changes least, by the mean square. Weights are symmetric, by output channel.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from ...errors import UserError
from ..graph import (
    BOUNDS,
    Bytes,
    Concat,
    Conv,
    Elementwise,
    GateSpec,
    GlobalPool,
    Graph,
    Linear,
    Pool,
    Step,
    activated_apart,
    is_activation,
    values_read,
)
from ..rules import MOST_BYTE_CHANNELS, MOST_TERMS
from ..run import torch_steps

MOST_WEIGHT = 127
SAMPLE = 1 << 15  # numbers of a value that are looked at, of each batch
SHARES = (1.0, 0.99, 0.98, 0.96, 0.94, 0.92, 0.9, 0.87, 0.84, 0.8, 0.75, 0.7, 0.6, 0.5)  # of the range, to choose from
LEAST_RANGE = 1e-12
LEAST_WEIGHTS = 1 << 15  # of a linear step, to be bytes: to read fewer takes no time
LEAST_OVERLAP = 0.99  # of the channels that a generator of bytes chooses with those that it chose before


@dataclass
class Seen:
    """What calibration saw of a value."""

    channels: int
    pixels: int  # of the smallest planes
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
        self.pixels = min(self.pixels, value.shape[2] * value.shape[3])
        self.lowest = torch.minimum(self.lowest, value.amin((0, 2, 3)))
        self.highest = torch.maximum(self.highest, value.amax((0, 2, 3)))
        flat = value.flatten()
        self.samples.append(flat[:: max(1, len(flat) // SAMPLE)].clone())


@dataclass
class Calibration:
    """Of a graph that was made plain: what was seen of its values, and the errors of weights that were rounded."""

    graph: Graph
    seen: dict[str, Seen]
    bias_errors: dict[str, Tensor]  # by output of a step with weights: what rounded ones lack on average
    gates: dict[str, GateSpec]  # by output of a dynamic convolution: of bytes where it chooses likewise


def plain(graph: Graph) -> Graph:
    """The same function, in which norms before a convolution or pooling are steps of their own, and each is alone."""
    steps: list[Step] = []
    for step in graph.steps:
        if isinstance(step, Conv) and step.expansion is not None:
            name = f"{step.output} expanded"
            steps += activated_apart(replace(step.expansion, output=name))
            step = replace(step, input=name, expansion=None)
        if isinstance(step, Conv | Pool | GlobalPool) and step.before is not None and not is_winners(step):
            name = f"{step.output} normalized"
            norm = replace(step.before, activation="identity")
            before = Elementwise(step.input, name, norm, activation=step.before.activation, label=step.label)
            steps += activated_apart(before)
            step = replace(step, input=name, before=None)
        steps += activated_apart(step)
    return replace(graph, steps=steps)


def calibrate(graph: Graph, batches: Iterable[Tensor]) -> Calibration:
    """Runs images through a plain graph, with torch."""
    rounded = {step.output: _rounding_error(step) for step in graph.steps if rounds_weights(step)}
    seen: dict[str, Seen] = {}
    errors: dict[str, list[Tensor]] = {}
    means: dict[str, list[Tensor]] = {step.output: [] for step in graph.steps if isinstance(step, Conv) and step.gate}
    for x in batches:
        values: dict[str, Any] = {graph.input: x}
        _see(seen, graph.input, x)
        last_reads = {name: at for at, step in enumerate(graph.steps) for name in values_read(step)}
        for at, step in enumerate(graph.steps):
            if step.output in rounded:
                error = torch_steps.run_step(rounded[step.output], values)
                errors.setdefault(step.output, []).append(error.transpose(0, 1).flatten(1).mean(1))
            if isinstance(step, Conv) and step.gate is not None:
                means[step.output].append(values[step.input].mean((2, 3)))
            values[step.output] = torch_steps.run_step(step, values)
            _see(seen, step.output, values[step.output])
            for name in values_read(step):
                if last_reads[name] == at and name != graph.output:
                    values.pop(name, None)
    if not seen:
        raise UserError("there are no calibration images; give some that are like those the network will see")
    bias_errors = {name: torch.stack(parts).mean(0) for name, parts in errors.items()}
    gates = {
        step.output: gate_of_bytes(step.gate, torch.cat(means[step.output]))
        for step in graph.steps
        if isinstance(step, Conv) and step.gate is not None
    }
    return Calibration(graph, seen, bias_errors, gates)


def _see(seen: dict[str, Seen], name: str, value: Any) -> None:
    if not isinstance(value, Tensor) or value.dim() != 4 or value.dtype != torch.float32 or not value.numel():
        return
    if not torch.isfinite(value).all():
        raise UserError(
            f"a calibration image makes {name!r} NaN or infinite; give images as the network was trained on, normalized"
        )
    if name not in seen:
        channels, height, width = value.shape[1:]
        seen[name] = Seen(channels, height * width, torch.zeros(channels), torch.zeros(channels))
    seen[name].see(value)


def _rounding_error(step: Conv | Linear) -> Conv | Linear:
    """The step whose weights are what rounding takes away."""
    whole, scales = rounded_weights(step.weight)
    error = step.weight - whole.float() * _by_output(scales, step.weight)
    if isinstance(step, Linear):
        return replace(step, weight=error, bias=None, activation="identity")
    return replace(step, weight=error, bias=None, residual=None, activation="identity")


def rounded_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights as integers, and the scale of each output."""
    scales = (weight.abs().flatten(1).amax(1) / MOST_WEIGHT).clamp_min(LEAST_RANGE)
    return (weight / _by_output(scales, weight)).round().clamp(-MOST_WEIGHT, MOST_WEIGHT).to(torch.int8), scales


def _by_output(numbers: Tensor, weight: Tensor) -> Tensor:
    return numbers.view(-1, *[1] * (weight.dim() - 1))


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


def gate_of_bytes(gate: GateSpec, means: Tensor) -> GateSpec:
    """The gate with a generator of bytes that scores as before on average; or as it was, where that chose others.

    Where scores are close to each other, what rounding takes from them decides.
    """
    rounded = rounded_gate(gate)
    lack = (torch_steps.scores(gate, means) - torch_steps.scores(rounded, means)).mean(0)
    rounded = replace(rounded, bias=rounded.bias + lack)
    before, now = (torch_steps.select(form, means)[1] for form in (gate, rounded))
    overlap = (before & now).sum() / (before | now).sum().clamp_min(1)
    return rounded if overlap >= LEAST_OVERLAP or not before.any() else gate


def rounds_weights(step: Step) -> TypeGuard[Conv | Linear]:
    """Whether there is a form whose weights are bytes, and it is worth while."""
    if isinstance(step, Linear):
        return step.weight.numel() >= LEAST_WEIGHTS
    return isinstance(step, Conv) and takes_bytes(step)


def takes_bytes(step: Step) -> bool:
    """Whether there is a form for bytes."""
    if isinstance(step, Conv):
        terms = step.weight[0].numel()
        channels = max(len(step.weight), step.weight.shape[1] * step.groups)
        return not is_winners(step) and not step.same and terms <= MOST_TERMS and channels <= MOST_BYTE_CHANNELS
    if isinstance(step, Elementwise):
        if step.factor is not None or step.activation not in BOUNDS:
            return is_activation(step)
        return step.norm is None or step.norm.activation == "identity" or step.other is None
    return isinstance(step, Pool | GlobalPool | Concat)


def is_winners(step: Step) -> bool:
    return isinstance(step, Conv) and step.boost is not None


def best_bytes(least: float, most: float, samples: list[Tensor]) -> Bytes:
    """The range whose rounding changes the samples least."""
    if most - least < LEAST_RANGE:
        return Bytes(1.0, 0)
    numbers = torch.cat(samples).double()
    candidates = [bytes_of(share * least, share * most) for share in SHARES]

    def error(bytes: Bytes) -> float:
        stored = (numbers / bytes.scale).round().add(bytes.zero).clamp(0, 255)
        return float(((stored - bytes.zero) * bytes.scale - numbers).square().mean())

    return min(candidates, key=error)


def bytes_of(least: float, most: float) -> Bytes:
    """Zero is a byte exactly: it is what the padding is made of."""
    scale = max((most - least) / 255, LEAST_RANGE)
    return Bytes(scale, min(255, max(0, round(-least / scale))))


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
