"""Joins steps until what is left of a network is little more than its convolutions.

Three passes, each a walk over the steps: what follows a convolution goes into it, then what stands before one does,
and a convolution that only feeds a depthwise one becomes a part of it.
"""

from dataclasses import replace
from typing import TypeGuard

import torch

from ..graph import Activation, Conv, Elementwise, GlobalPool, Graph, Norm, Pool, Step, Torch, values_read
from ..run.packing import can_join


def fuse(graph: Graph) -> Graph:
    """The same function in fewer steps."""
    return join_expansions(hand_to_consumers(absorb_into_producers(graph)))


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
        if not isinstance(step, Elementwise) or step.other is not None or step.order is not None:
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
    if step.order is not None:
        return None
    if _only_reorders(producer) and step.input == producer.output:
        return replace(step, input=producer.input, order=producer.order, label=label)
    if step.other is not None:
        other = step.other if step.input == producer.output else step.input
        return _absorb_addition(producer, step, other, label)
    if isinstance(producer, Conv) and step.norm is not None:
        if producer.activation != "identity" or producer.residual is not None or producer.boost is not None:
            return None
        activation = _both(step.norm.activation, step.activation)
        return replace(scaled(producer, step.norm), output=step.output, activation=activation, label=label)
    if isinstance(producer, Conv | Elementwise) and step.norm is None:
        activation = _both(producer.activation, step.activation)
        return replace(producer, output=step.output, activation=activation, label=label)
    return None


def _absorb_addition(producer: Step, step: Elementwise, other: str, label: str) -> Step | None:
    if step.norm is not None:
        return None
    if isinstance(producer, Conv) and producer.activation == "identity" and producer.residual is None:
        return replace(producer, residual=other, output=step.output, activation=step.activation, label=label)
    if isinstance(producer, Elementwise) and producer.other is None and (norm := _norm(producer)):
        return replace(step, input=producer.input, norm=norm, other=other, order=producer.order, label=label)
    return None


def _only_reorders(step: Step) -> TypeGuard[Elementwise]:
    return isinstance(step, Elementwise) and step.norm is step.other is None and step.activation == "identity"


def scaled(conv: Conv, norm: Norm) -> Conv:
    """The convolution whose result is already normalized. Dynamic ones too: their gates depend on the input only."""
    scale, shift = norm.scale.double(), norm.shift.double()
    weight = conv.weight.double() * scale[:, None, None, None]
    bias = shift if conv.bias is None else conv.bias.double() * scale + shift
    return replace(conv, weight=weight.float(), bias=bias.float())


def _norm(step: Elementwise, takers: list[Conv | Pool | GlobalPool] | None = None) -> Norm | None:
    """All that a step without an addition does, as a norm. A mere activation needs to know the number of channels."""
    if step.norm is not None:
        return replace(step.norm, activation=_both(step.norm.activation, step.activation))
    channels = {taker.weight.shape[1] * taker.groups for taker in takers or [] if isinstance(taker, Conv)}
    if len(channels) != 1:
        return None
    ones = torch.ones(channels.pop(), dtype=torch.float32, device="cpu")
    return Norm(ones, torch.zeros_like(ones), step.activation)


def _both(first: Activation, then: Activation) -> Activation:
    """One activation after another."""
    return "relu6" if "relu6" in (first, then) else "relu" if "relu" in (first, then) else "identity"
