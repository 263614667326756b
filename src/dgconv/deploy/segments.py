"""Cuts a graph into programs for the native executor, which have one input and one output, and steps left to torch."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from .graph import Conv, Graph, Pointwise, Step, Torch, values_read

TWO_INPUTS = "it reads more than one value from beyond a step that is left to torch"


@dataclass(frozen=True)
class Segment:
    """Steps that run together. ``reason`` says why it is torch that runs them, if it is."""

    graph: Graph
    reason: str | None = None

    @property
    def reads(self) -> list[str]:
        return list(dict.fromkeys(_outside_reads(self.graph.steps)))


def segments(graph: Graph, why_not: Callable[[Step], str | None]) -> list[Segment]:
    """In order; each native one as long as can be. ``why_not`` gives the reason why a step is not native.

    A convolution that would add what lies beyond a step left to torch, as in a block with squeeze and excitation, gives
    the addition away: torch adds nearly as fast, but it convolves far more slowly.
    """
    found = _cut(graph, why_not)
    alone = {part.graph.output for part in found if part.reason == TWO_INPUTS}
    if not any(isinstance(step, Conv) and step.output in alone for step in graph.steps):
        return found
    steps: list[Step] = []
    for step in graph.steps:
        steps += _apart(step) if isinstance(step, Conv) and step.output in alone else [step]
    return segments(replace(graph, steps=steps), why_not)


def _apart(conv: Conv) -> list[Step]:
    """A convolution, and then the addition."""
    name = f"{conv.output} before the addition"
    addition = Pointwise(name, conv.output, other=conv.residual, activation=conv.activation, label=conv.label)
    return [replace(conv, output=name, residual=None, activation="identity"), addition]


def _cut(graph: Graph, why_not: Callable[[Step], str | None]) -> list[Segment]:
    last_reads = {name: at for at, step in enumerate(graph.steps) for name in values_read(step)}
    last_reads[graph.output] = len(graph.steps)
    found, start = [], 0
    while start < len(graph.steps):
        first = graph.steps[start]
        reason = first.reason if isinstance(first, Torch) else why_not(first)
        end = start + 1
        if reason is None and len(set(values_read(first))) > 1:
            reason = TWO_INPUTS
        if reason is None:
            end = _end_of_program(graph.steps, start, last_reads, why_not)
        steps = graph.steps[start:end]
        found.append(Segment(Graph(_outside_reads(steps)[0], _outputs(steps, end, last_reads)[0], steps), reason))
        start = end
    return found


def _end_of_program(
    steps: list[Step], start: int, last_reads: dict[str, int], why_not: Callable[[Step], str | None]
) -> int:
    best = start + 1
    for end in range(start + 1, len(steps) + 1):
        last = steps[end - 1]
        if isinstance(last, Torch) or why_not(last) or len(set(_outside_reads(steps[start:end]))) > 1:
            break
        if len(_outputs(steps[start:end], end, last_reads)) == 1:
            best = end
    return best


def _outside_reads(steps: list[Step]) -> list[str]:
    inside = {step.output for step in steps}
    return [name for step in steps for name in values_read(step) if name not in inside]


def _outputs(steps: list[Step], end: int, last_reads: dict[str, int]) -> list[str]:
    """What is read after these steps, the last of them ending before ``end``; a step nobody reads gives its own."""
    read_later = [step.output for step in steps if last_reads.get(step.output, -1) >= end]
    return read_later or [steps[-1].output]
