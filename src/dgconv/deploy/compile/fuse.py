"""Joins steps until what is left of a network is little more than its convolutions.

Four passes, each a walk over the steps: padding becomes that of the convolution that reads it, what follows a
convolution goes into it, then what stands before one does, and a convolution that only feeds a depthwise one becomes a
part of it. On a CPU a fifth takes one apart: :func:`pick_pixels`.
"""

from dataclasses import replace
from typing import TypeGuard, TypeVar, cast

import torch

from ..graph import (
    BOUNDS,
    Activation,
    Bound,
    Conv,
    Elementwise,
    GlobalPool,
    Graph,
    Linear,
    Norm,
    Pad,
    Pool,
    Step,
    Torch,
    values_read,
)
from ..run.packing import can_join

Layer = TypeVar("Layer", Conv, Linear)
PICKED_ONCE = 256  # outputs; for more of them a kernel would pick the same pixels again


def fuse(graph: Graph) -> Graph:
    """The same function in fewer steps."""
    return join_expansions(hand_to_consumers(absorb_into_producers(join_padding(graph))))


def pick_pixels(graph: Graph) -> Graph:
    """A wide 1x1 convolution with a stride gets the pixels that it reads picked first, once for all its outputs."""
    steps: list[Step] = []
    for step in graph.steps:
        if isinstance(step, Conv) and _picks_often(step):
            picked = f"{step.output}.picked"
            pool = Pool(step.input, picked, "max", (1, 1), step.stride, before=step.before, label=step.label)
            steps.append(pool)
            step = replace(step, input=picked, stride=(1, 1), before=None)
        steps.append(step)
    return replace(graph, steps=steps)


def _picks_often(conv: Conv) -> bool:
    is_plain = conv.groups == 1 and not any((conv.gate, conv.picks, conv.boost, conv.expansion, conv.same))
    is_pointwise = conv.weight.shape[2:] == (1, 1) and not any((*conv.padding, *conv.extra_padding))
    return is_plain and is_pointwise and max(conv.stride) > 1 and len(conv.weight) > PICKED_ONCE


def join_padding(graph: Graph) -> Graph:
    """Zeros around planes are left to the convolutions that read them, if these have no gate, which would see them."""
    pads = {step.output: step for step in graph.steps if isinstance(step, Pad)}
    steps = [_padded(step, pads.get(step.input)) if isinstance(step, Conv) else step for step in graph.steps]
    read = {graph.output, *(name for step in steps for name in values_read(step))}
    return Graph(graph.input, graph.output, [s for s in steps if not isinstance(s, Pad) or s.output in read])


def _padded(conv: Conv, pad: Pad | None) -> Conv:
    """The convolution of what is not padded yet; the padding at the end must be the larger one."""
    if pad is None or conv.same or conv.gate is not None or conv.boost is not None:
        return conv
    padding = (pad.padding[0] + conv.padding[0], pad.padding[1] + conv.padding[1])
    down, right = (
        last + own + extra - first
        for last, own, extra, first in zip(pad.end_padding, conv.padding, conv.extra_padding, padding, strict=True)
    )
    if min(down, right) < 0:
        return conv
    label = f"{pad.label} + {conv.label}"
    return replace(conv, input=pad.input, padding=padding, extra_padding=(down, right), label=label)


def absorb_into_producers(graph: Graph) -> Graph:
    """Batch norms, additions and activations go into a step that comes before, if nobody else reads what it writes.

    That step then stands where they stood. It may, for values do not change once they are written; all but those
    given to code that nobody looked into.
    """
    uses = _use_counts(graph)
    steps: dict[str, Step] = {}  # by output, in order
    for step in graph.steps:
        if isinstance(step, Elementwise):
            before = [producer for name, producer in steps.items() if name in values_read(step) and uses[name] == 1]
            convs = [producer for producer in before if isinstance(producer, Conv)]
            for producer in [*reversed(convs), *before]:  # of two convolutions the later one
                joined = _absorb(producer, step)
                if joined and not _may_change(_between(list(steps.values()), producer, None), values_read(producer)):
                    del steps[producer.output]
                    step = joined
                    break
        steps[step.output] = step
    return Graph(graph.input, graph.output, list(steps.values()))


def hand_to_consumers(graph: Graph) -> Graph:
    """A norm or activation that is left goes into the steps that read it, if all of them can take it."""
    uses = _use_counts(graph)
    steps = list(graph.steps)
    for step in graph.steps:
        if not isinstance(step, Elementwise) or step.other or step.order is not None or step.factor:
            continue
        readers = [reader for reader in steps if step.output in values_read(reader)]
        takers = [taker for taker in readers if isinstance(taker, Conv | Pool | GlobalPool) and taker.before is None]
        takers = [taker for taker in takers if taker.input == step.output]
        if takers and _may_change(_between(steps, step, takers[-1]), [step.input]):
            continue
        if uses[step.output] == len(takers) and (norm := _norm(step, takers)):
            for taker in takers:
                taker.input, taker.before = step.input, norm
                taker.label = f"{step.label} + {taker.label}"
            steps = [other for other in steps if other is not step]
    return Graph(graph.input, graph.output, steps)


def join_expansions(graph: Graph) -> Graph:
    """A depthwise convolution takes in the one before it, if nobody else reads that and there is a kernel."""
    uses = _use_counts(graph)
    steps: dict[str, Step] = {}  # by output, in order
    for step in graph.steps:
        if isinstance(step, Conv) and step.expansion is None and uses[step.input] == 1:
            first = steps.get(step.input)
            between = _between(list(steps.values()), first, None) if first else []
            is_pair = isinstance(first, Conv) and first.expansion is None
            if (
                isinstance(first, Conv)
                and is_pair
                and can_join(first, step)
                and not _may_change(between, [first.input])
            ):
                del steps[first.output]
                step = replace(step, input=first.input, expansion=first, label=f"{first.label} + {step.label}")
        steps[step.output] = step
    return Graph(graph.input, graph.output, list(steps.values()))


def _use_counts(graph: Graph) -> dict[str, int]:
    """How often each value is read; the result once more, by the caller."""
    counts = dict.fromkeys([graph.input, *(step.output for step in graph.steps)], 0)
    for name in [graph.output, *(name for step in graph.steps for name in values_read(step))]:
        counts[name] += 1
    return counts


def _between(steps: list[Step], first: Step, last: Step | None) -> list[Step]:
    """The steps after the first and before the last; all if there is no last."""
    places = [place for place, step in enumerate(steps) if step is first or step is last]
    return steps[places[0] + 1 : places[1] if last else None]


def _may_change(steps: list[Step], names: list[str]) -> bool:
    return any(isinstance(step, Torch) and step.may_change_inputs and set(step.inputs) & set(names) for step in steps)


def _absorb(producer: Step, step: Elementwise) -> Step | None:
    """One step that does both, or None if there is no such step."""
    label = f"{producer.label} + {step.label}"
    if step.order is not None or step.factor is not None:
        return None
    if _only_reorders(producer) and step.input == producer.output:
        return replace(step, input=producer.input, order=producer.order, label=label)
    if step.other is not None:
        other = step.other if step.input == producer.output else step.input
        return _absorb_addition(producer, step, other, label)
    if isinstance(producer, Conv) and step.norm is not None:
        if producer.activation != "identity" or producer.residual is not None or producer.boost is not None:
            return None
        if activation := both(step.norm.activation, step.activation):
            return replace(scaled(producer, step.norm), output=step.output, activation=activation, label=label)
    elif isinstance(producer, Linear) and step.norm is not None and producer.activation == "identity":
        if activation := both(step.norm.activation, step.activation):
            return replace(scaled(producer, step.norm), output=step.output, activation=activation, label=label)
    elif isinstance(producer, Conv | Linear | Elementwise) and step.norm is None:
        activation = both(producer.activation, step.activation)
        if activation and (activation in BOUNDS or not (isinstance(producer, Conv) and producer.boost)):
            return replace(producer, output=step.output, activation=activation, label=label)
    return None


def _absorb_addition(producer: Step, step: Elementwise, other: str, label: str) -> Step | None:
    if step.norm is not None:
        return None
    if isinstance(producer, Conv) and producer.activation == "identity" and producer.residual is None:
        return replace(producer, residual=other, output=step.output, activation=step.activation, label=label)
    if isinstance(producer, Elementwise) and producer.factor is not None:
        if producer.other is not None or producer.activation != "identity" or producer.output != step.input:
            return None
        return replace(producer, other=other, output=step.output, activation=step.activation, label=label)
    if isinstance(producer, Elementwise) and producer.other is None and (norm := _norm(producer)):
        return replace(step, input=producer.input, norm=norm, other=other, order=producer.order, label=label)
    return None


def _only_reorders(step: Step) -> TypeGuard[Elementwise]:
    is_plain = isinstance(step, Elementwise) and step.norm is step.other is step.factor is None
    return is_plain and step.activation == "identity"  # type: ignore[union-attr]


def scaled(conv: Layer, norm: Norm) -> Layer:
    """The convolution whose result is already normalized. Dynamic ones too: their gates depend on the input only."""
    scale, shift = norm.scale.double(), norm.shift.double()
    weight = conv.weight.double() * scale.view(-1, *[1] * (conv.weight.dim() - 1))
    bias = shift if conv.bias is None else conv.bias.double() * scale + shift
    return replace(conv, weight=weight.float(), bias=bias.float())


def _norm(step: Elementwise, takers: list[Conv | Pool | GlobalPool] | None = None) -> Norm | None:
    """All that a step without an addition does, as a norm, if that is one. A mere activation needs to know the number
    of channels."""
    activation = step.activation if step.norm is None else both(step.norm.activation, step.activation)
    if activation not in BOUNDS:
        return None
    bound = cast(Bound, activation)
    if step.norm is not None:
        return replace(step.norm, activation=bound)
    channels = {taker.weight.shape[1] * taker.groups for taker in takers or [] if isinstance(taker, Conv)}
    if len(channels) != 1:
        return None
    ones = torch.ones(channels.pop(), dtype=torch.float32, device="cpu")
    return Norm(ones, torch.zeros_like(ones), bound)


def both(first: Activation, then: Activation) -> Activation | None:
    """One activation after another; None if no single one does that."""
    if "identity" in (first, then):
        return then if first == "identity" else first
    if first in BOUNDS and then in BOUNDS:
        return "relu6" if "relu6" in (first, then) else "relu"
    return None
