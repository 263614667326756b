"""In what order the channels of bytes lie in a pixel: as suits whoever writes them, which is head by head.

The heads of a convolution own every H-th output. Lying side by side, the outputs of one are written at once; who reads
them finds its weights in the same order. What is added to them has to lie likewise.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..graph import ByteConv, BytePool, Bytes, ByteTable, Concat, Graph, Rescale, Step, byte_values, values_read

Order = Tensor | None  # the channel at each place; None: each at its own


def with_orders(graph: Graph) -> tuple[Graph, dict[str, Order]]:
    """The order of every value of bytes; where two that are added, or joined, would not agree, one is copied first."""
    are_bytes, wanted = byte_values(graph), _wanted_heads(graph)
    orders: dict[str, Order] = {graph.input: None}
    channels: dict[str, int | None] = {graph.input: None}
    steps: list[Step] = []

    def reordered(name: str, order: Order) -> str:
        if same(orders[name], order):
            return name
        count = len(orders[name] if order is None else order)  # type: ignore[arg-type]
        ones = torch.ones(count, dtype=torch.float32, device="cpu")
        copy = f"{name} in order {len(steps)}"
        steps.append(Rescale(name, copy, ones, torch.zeros_like(ones), Bytes(1.0, 0)))
        orders[copy], channels[copy] = order, count
        return copy

    for step in graph.steps:
        if step.output in are_bytes:
            if isinstance(step, ByteConv):
                if is_depthwise(step):
                    orders[step.output] = orders[step.input]
                elif (heads := heads_of(step)) > 1 or step.groups > 1:
                    orders[step.output] = by_head(step, heads)
                elif step.residual is None:
                    orders[step.output] = by_head(step, wanted.get(step.output, 1))
                else:
                    orders[step.output] = orders[step.residual]
                if step.residual is not None:
                    step = replace(step, residual=reordered(step.residual, orders[step.output]))
                channels[step.output] = len(step.weight)
            elif isinstance(step, Rescale):
                takes = step.input if step.other is None else step.other
                orders[step.output] = None if step.order is not None and step.other is None else orders.get(takes)
                channels[step.output] = len(step.scale)
            elif isinstance(step, Concat):
                if any(channels[part] is None for part in step.inputs):
                    step = replace(step, inputs=[reordered(part, None) for part in step.inputs])
                orders[step.output] = _joined([(orders[part], channels[part]) for part in step.inputs])
                sizes = [channels[part] for part in step.inputs]
                channels[step.output] = None if None in sizes else sum(sizes)  # type: ignore[arg-type]
            else:
                (given,) = values_read(step)
                orders[step.output], channels[step.output] = orders.get(given), channels.get(given)
        steps.append(step)
    return replace(graph, steps=steps), orders


def _joined(parts: list[tuple[Order, int | None]]) -> Order:
    if all(order is None for order, _ in parts):
        return None
    joined, first = [], 0
    for order, count in parts:
        assert count is not None
        joined.append(first + (torch.arange(count, dtype=torch.int32, device="cpu") if order is None else order))
        first += count
    return torch.cat(joined)


def heads_of(step: ByteConv) -> int:
    """How many groups take turns with the outputs of a convolution."""
    if step.gate is not None:
        return len(step.gate.bias)
    return len(step.picks) if step.picks is not None else step.groups if step.interleaved else 1


def is_depthwise(step: ByteConv) -> bool:
    is_plain = step.gate is None and step.picks is None
    return is_plain and step.groups > 1 and step.weight.shape[1] == 1 and len(step.weight) == step.groups


def by_head(step: ByteConv, heads: int) -> Order:
    channels = len(step.weight)
    if heads == 1 or channels % heads:
        return None
    return torch.arange(channels, dtype=torch.int32, device="cpu").view(-1, heads).T.flatten()


def positions(order: Order) -> Order:
    """Where each channel lies."""
    if order is None:
        return None
    found = torch.empty_like(order)
    found[order.long()] = torch.arange(len(order), dtype=order.dtype, device="cpu")
    return found


def same(one: Order, other: Order) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def _wanted_heads(graph: Graph) -> dict[str, int]:
    """By how many heads a value should be ordered that is added to what heads have written."""
    wanted: dict[str, int] = {}
    for step in reversed(graph.steps):
        if isinstance(step, ByteConv):
            heads = heads_of(step)
            own = heads if heads > 1 else wanted.get(step.output, 1)
            if step.residual is not None:
                wanted.setdefault(step.residual, own)
            if is_depthwise(step):
                wanted.setdefault(step.input, own)
        elif isinstance(step, BytePool | Rescale | ByteTable) and step.output in wanted:
            wanted.setdefault(step.input, wanted[step.output])
    return wanted
