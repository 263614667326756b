"""In which order the channels of each value lie in a GPU's memory.

A head's outputs o·H + h, side by side in memory, are written in whole sectors; with the heads in turn every sector is
written by all of them. Whoever reads them has its weights in that order, so it costs nothing. Values that are added,
pooled or normalized share one order; where one of them must be as torch has it, all are.
"""

import torch
from torch import Tensor

from ..graph import Conv, Elementwise, GlobalPool, Graph, Linear, Pool, values_read


def heads_of(step: Conv) -> int:
    """In how many turns its output channels are those of heads or interleaved groups."""
    return step.gate.weight1.shape[0] if step.gate else step.groups if step.interleaved else 1


def find_heads(graph: Graph) -> dict[str, int]:
    """For each value the number of heads by which its channels lie together; 1 if they lie as torch has them."""
    parent: dict[str, str] = {}
    fixed, wishes = {graph.input, graph.output}, dict[str, int]()

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for step in graph.steps:
        together = [step.output]
        match step:
            case Conv():
                is_depthwise = step.groups == step.weight.shape[0] and step.weight.shape[1] == 1
                if heads_of(step) > 1:
                    wishes[step.output] = heads_of(step)
                if step.residual is not None:
                    together.append(step.residual)
                if is_depthwise and not step.interleaved:
                    together.append(step.input)
                elif step.groups > 1:
                    fixed |= {step.input} if step.interleaved else {step.input, step.output}
            case Pool() | GlobalPool():
                together.append(step.input)
            case Elementwise() if step.order is None:
                together += values_read(step)
            case Linear():
                fixed.add(step.output)
            case _:
                fixed |= {step.output, *values_read(step)}
        for name in together[1:]:
            parent[root(name)] = root(together[0])
    groups: dict[str, set[int]] = {}
    for name, heads in wishes.items():
        groups.setdefault(root(name), set()).add(heads)
    natural = {root(name) for name in fixed}
    names = [graph.input, *(step.output for step in graph.steps)]
    found = {name: groups.get(root(name), {1}) for name in names}
    return {
        name: next(iter(heads)) if len(heads) == 1 and root(name) not in natural else 1 for name, heads in found.items()
    }


def order_of(channels: int, heads: int) -> Tensor:
    """Which channel lies at each place."""
    return torch.arange(channels).view(-1, heads).T.flatten()
