"""Where each value of a network lives: a place in one block of memory, reused once a value is dead.

Joining channels costs nothing where it can: the parts are written next to each other in the first place.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from ..graph import Concat, Graph, Slice, byte_values, values_read
from .memory import aligned
from .shapes import Shape, as_planes

BYTE_SLACK = 64  # bytes that kernels may read behind the last


@dataclass(frozen=True)
class Home:
    """Some channels of a buffer, which carries the name of the value that fills it."""

    buffer: str
    channel: int = 0


@dataclass
class Buffer:
    """Memory that is needed from one step to another, both included."""

    floats: int
    first: int
    last: int
    offset: int = 0


def find_homes(graph: Graph, shapes: dict[str, Shape]) -> dict[str, Home]:
    """A home for every value, such that as many as possible are born where a ``Concat`` wants them.

    From the last ``Concat`` to the first, so that a chain that grows by one part at a time, or that joins all earlier
    parts again and again, becomes one buffer with views of growing width. A part that two joins want in different
    places lives in one of them; the other one has to copy it.
    """
    homes = {graph.input: Home(graph.input)}
    for step in reversed(graph.steps):
        if not isinstance(step, Concat):
            continue
        if step.output not in homes and _lie_side_by_side(step.inputs, homes, shapes):
            homes[step.output] = homes[step.inputs[0]]
            continue
        homes.setdefault(step.output, Home(step.output))
        for part, place in concat_places(step, homes, shapes):
            homes.setdefault(part, place)
    for step in graph.steps:
        homes.setdefault(step.output, slice_place(step, homes) if isinstance(step, Slice) else Home(step.output))
    return homes


def slice_place(step: Slice, homes: dict[str, Home]) -> Home:
    """Where the channels of a slice lie in what it is a part of."""
    return Home(homes[step.input].buffer, homes[step.input].channel + step.first)


def concat_places(step: Concat, homes: dict[str, Home], shapes: dict[str, Shape]) -> list[tuple[str, Home]]:
    """Each part of a join with the place where the join wants it."""
    joined, channel = homes[step.output], homes[step.output].channel
    places = []
    for part in step.inputs:
        places.append((part, Home(joined.buffer, channel)))
        channel += shapes[part][0]
    return places


def _lie_side_by_side(parts: list[str], homes: dict[str, Home], shapes: dict[str, Shape]) -> bool:
    if any(part not in homes for part in parts):
        return False
    return all(
        homes[right] == Home(homes[left].buffer, homes[left].channel + shapes[left][0])
        for left, right in pairwise(parts)
    )


def value_buffers(graph: Graph, homes: dict[str, Home], shapes: dict[str, Shape], batch: int) -> dict[str, Buffer]:
    """The buffers behind the homes, each alive from its first to its last mention."""
    are_bytes = byte_values(graph)
    buffers: dict[str, Buffer] = {}
    mentions = [(-1, graph.input)]
    mentions += [(index, name) for index, step in enumerate(graph.steps) for name in [step.output, *values_read(step)]]
    for index, value in mentions:
        name = homes[value].buffer
        channels, height, width = as_planes(shapes[name])
        size = batch * channels * height * width
        floats = -(-(size + BYTE_SLACK) // 4) if name in are_bytes else size
        buffer = buffers.setdefault(name, Buffer(floats, index, index))
        buffer.last = index
    return buffers


def assign_offsets(buffers: Iterable[Buffer]) -> int:
    """Gives each buffer the lowest place free during its life, the largest first; returns the floats needed in all."""
    placed: list[Buffer] = []  # by offset
    for buffer in sorted(buffers, key=lambda buffer: -buffer.floats):
        buffer.offset = 0
        for other in placed:
            meets_in_time = buffer.first <= other.last and other.first <= buffer.last
            if meets_in_time and buffer.offset + buffer.floats > other.offset:
                buffer.offset = max(buffer.offset, aligned(other.offset + other.floats))
        insort(placed, buffer, key=lambda other: other.offset)
    return max((aligned(buffer.offset + buffer.floats) for buffer in placed), default=0)
