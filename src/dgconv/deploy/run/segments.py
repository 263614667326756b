"""Cuts a graph into programs for the native executor, which have one input and one output, and steps left to torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import takewhile

from ..graph import Conv, Elementwise, Graph, Step, Torch, byte_values, values_read

TWO_INPUTS = "it reads more than one value from beyond a step that is left to torch"
MOST_PASSES = 8  # over the graph; what then still stands alone is left to torch


@dataclass(frozen=True)
class Segment:
    """Steps that run together. ``reason`` says why it is torch that runs them, if it is."""

    graph: Graph
    reason: str | None = None

    @property
    def reads(self) -> list[str]:
        return list(dict.fromkeys(_outside_reads(self.graph.steps)))


def segments(graph: Graph, why_not: Callable[[Step], str | None]) -> list[Segment]:
    """Cuts a graph into segments, in order, each native one as long as can be. ``why_not`` gives the reason why a step
    is not native.

    A convolution that would add what lies beyond a step left to torch, as in a block with squeeze and excitation, gives
    the addition away: torch adds nearly as fast, but it convolves far more slowly.
    """
    for _ in range(MOST_PASSES):
        found = _cut(graph, why_not)
        alone = {part.graph.output for part in found if part.reason == TWO_INPUTS}
        if not any(isinstance(step, Conv) and step.output in alone for step in graph.steps):
            break
        taken = {graph.input, *(step.output for step in graph.steps)}
        steps: list[Step] = []
        for step in graph.steps:
            steps += _apart(step, taken) if isinstance(step, Conv) and step.output in alone else [step]
        graph = replace(graph, steps=steps)
    return found


def _apart(conv: Conv, taken: set[str]) -> list[Step]:
    """A convolution, and then the addition. What lies between them has a name that no other value has."""
    name = f"{conv.output} before the addition"
    while name in taken:
        name += " "
    taken.add(name)
    addition = Elementwise(name, conv.output, other=conv.residual, activation=conv.activation, label=conv.label)
    return [replace(conv, output=name, residual=None, activation="identity"), addition]


def _cut(graph: Graph, why_not: Callable[[Step], str | None]) -> list[Segment]:
    last_reads = {name: at for at, step in enumerate(graph.steps) for name in values_read(step)}
    last_reads[graph.output] = len(graph.steps)
    reach = _Reach(graph, last_reads, why_not)
    found, start = [], 0
    while start < len(graph.steps):
        first = graph.steps[start]
        reason = first.reason or "left to torch" if isinstance(first, Torch) else why_not(first)
        end = start + 1
        if reason is None and len(set(values_read(first))) > 1:
            reason = TWO_INPUTS
        if reason is None:
            end = reach.end_of_program(start)
        steps = graph.steps[start:end]
        found.append(Segment(Graph(_outside_reads(steps)[0], _outputs(steps, end, last_reads)[0], steps), reason))
        start = end
    return found


class _Reach:
    """How far a program can go from each step on. A graph may be long: all that can be is counted once for all steps.

    Places are those of steps in the list, and a value has the place of the step that writes it; the input has -1.
    """

    def __init__(self, graph: Graph, last_reads: dict[str, int], why_not: Callable[[Step], str | None]) -> None:
        places = {graph.input: -1} | {step.output: place for place, step in enumerate(graph.steps)}
        self.read = [sorted({places[name] for name in values_read(step)}) for step in graph.steps]
        self.is_native = [not isinstance(step, Torch) and why_not(step) is None for step in graph.steps]
        self.ends_in_bytes = _bytes_alive(graph, last_reads)
        self.second_alive = list(_second_alive([last_reads.get(step.output, -1) for step in graph.steps]))

    def end_of_program(self, start: int) -> int:
        """Behind the last step up to which one value comes in, and one goes out."""
        best, outside = start + 1, self.read[start][0]
        for end in range(start + 1, len(self.read) + 1):
            read = self.read[end - 1]
            if not self.is_native[end - 1] or any(place != outside for place in takewhile(start.__gt__, read)):
                break
            if self.second_alive[end] < start and not self.ends_in_bytes[end - 1]:
                best = end
        return best


def _bytes_alive(graph: Graph, last_reads: dict[str, int]) -> list[bool]:
    """After each step: whether bytes are yet to be read, which stay within a program."""
    until = -1
    found, are_bytes = [], byte_values(graph)
    for at, step in enumerate(graph.steps):
        if step.output in are_bytes:
            until = max(until, last_reads.get(step.output, -1))
        found.append(until > at)
    return found


def _second_alive(last_reads: list[int]) -> Iterator[int]:
    """Before each step, and at the end: the last but one of the values so far that somebody is yet to read, or -1."""
    alive: list[int] = []  # places, the latest first, times -1; those on top are alive
    for at in range(len(last_reads) + 1):
        tops: list[int] = []
        while alive and len(tops) < 2:
            place = -heappop(alive)
            if last_reads[place] >= at:
                tops.append(place)
        yield tops[1] if len(tops) == 2 else -1
        for place in tops:
            heappush(alive, -place)
        if at < len(last_reads):
            heappush(alive, -at)


def _outside_reads(steps: list[Step]) -> list[str]:
    inside = {step.output for step in steps}
    return [name for step in steps for name in values_read(step) if name not in inside]


def _outputs(steps: list[Step], end: int, last_reads: dict[str, int]) -> list[str]:
    """What is read after these steps, the last of them ending before ``end``; a step nobody reads gives its own."""
    read_later = [step.output for step in steps if last_reads.get(step.output, -1) >= end]
    return read_later or [steps[-1].output]
