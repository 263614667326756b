"""Where torch is faster than the native kernels, as measured."""

from collections import Counter

import torch
from torch import Tensor

from ...ops.layout import is_channels_last
from ..graph import Conv, Graph, Step, values_read

LARGEST_DEPTHWISE = 25  # taps of the largest kernel of any form that torch is not faster at
LARGEST_IN_A_BRANCH = 49  # of those that it does not do too badly
LARGEST_MADE_FOR = (7, 7)  # what the native depthwise convolution is made for, beside smaller ones


def slower(step: Step, in_a_branch: bool = False) -> str | None:
    """Why torch should run a step that could be native; None if it should not.

    In a branch, see :func:`in_branches`, it would cut what runs beside it, too, into programs of a few steps.
    """
    largest = LARGEST_IN_A_BRANCH if in_a_branch else LARGEST_DEPTHWISE
    if not isinstance(step, Conv) or not _is_depthwise(step):
        return None
    is_made_for = (
        step.weight.shape[2:] == LARGEST_MADE_FOR and step.dilation == (1, 1) and step.stride[0] == step.stride[1] <= 2
    )
    if step.weight[0, 0].numel() > largest and not is_made_for:
        return "torch is faster at large depthwise kernels"
    return None


def in_branches(graph: Graph) -> set[str]:
    """The outputs of steps beside which there is another value that is read later."""
    steps = list(enumerate(graph.steps))
    last_reads = {name: at for at, step in steps for name in values_read(step)}
    changes = Counter[int]()  # of how many values a step has before it that one after it reads
    for at, name in [(-1, graph.input), *((at, step.output) for at, step in steps)]:
        changes.update({at + 1: 1} if name in last_reads else {})
        changes.subtract({last_reads[name]: 1} if name in last_reads else {})
    found, passing = set[str](), 0
    for at, step in steps:
        passing += changes[at]
        own = sum(last_reads[name] > at for name in set(values_read(step)))
        if passing > own:
            found.add(step.output)
    return found


def stays_channels_last(steps: list[Step]) -> bool:
    """Whether to leave a program to torch if the channels of each pixel lie together: a native one has to copy its
    input, which a single step rarely pays for."""
    return len(steps) == 1 and not (isinstance(steps[0], Conv) and _is_far_faster(steps[0]))


def laid_out_like(x: Tensor, y: Tensor) -> Tensor:
    """The result y of a program, as torch would have laid it out: what comes next may be made for channels that lie
    together, such as the layer norms of a ConvNeXt."""
    return y.contiguous(memory_format=torch.channels_last) if y.dim() == 4 and is_channels_last(x) else y


def _is_far_faster(conv: Conv) -> bool:
    """Whether native code is far faster: with Winograd's method, narrow groups, or less to compute than torch has."""
    is_winograd = conv.weight.shape[2:] == (3, 3) and conv.stride == conv.dilation == (1, 1)
    return not _is_depthwise(conv) and (is_winograd or conv.groups > 1 or not _is_plain(conv))


def _is_depthwise(conv: Conv) -> bool:
    return _is_plain(conv) and conv.groups > 1 and conv.weight.shape[1] == 1


def _is_plain(conv: Conv) -> bool:
    return conv.gate is conv.picks is conv.boost is conv.expansion is None and not conv.interleaved
