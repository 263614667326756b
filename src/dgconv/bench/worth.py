"""Where a dynamic layer is faster than the convolution it would replace, as measured."""

import copy
import statistics
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..deploy import prepare
from ..layers.convert import DGCConfig, FilterFn, convert_
from ..layers.mode import evaluating
from .timing import threads_restored, time_side_by_side

REPEATS = 5


def where_faster(
    model: nn.Module, images: Tensor, config: DGCConfig | None = None, *, threads: int = 1, repeats: int = REPEATS
) -> FilterFn:
    """A ``filter_fn`` for :func:`dgconv.convert_`: replaces a convolution where its dynamic form takes less time here.

    Each is timed on the input it gets from these images, prepared both ways, on so many threads; the network's first
    convolution is left. A dynamic layer that starts unpruned is timed at the usual rate.

    ::

        convert_(model, config, filter_fn=where_faster(model, images, config))
    """
    config = config or DGCConfig()
    pruned = replace(config, pruning_rate=config.pruning_rate or DGCConfig.pruning_rate)
    inputs = _inputs(model, images)
    first = next(iter(inputs.values()), None)

    def filter_fn(name: str, conv: nn.Conv2d) -> bool | str:
        if conv not in inputs:
            return "was not called with these images"
        if inputs[conv] is first:
            return "first conv"
        holder = nn.Sequential(copy.deepcopy(conv)).eval()
        dense = prepare(copy.deepcopy(holder))
        if convert_(holder, pruned, lambda *_: True).left:
            return True  # convert_ itself says why not
        dynamic, x = prepare(holder), inputs[conv]
        with threads_restored():
            torch.set_num_threads(threads)
            times = time_side_by_side({"dense": lambda: dense(x), "dynamic": lambda: dynamic(x)}, repeats)
        before, after = (statistics.median(times[form]) for form in ("dense", "dynamic"))
        return after < before or f"slower: {1e6 * before:.0f} µs would become {1e6 * after:.0f}"

    return filter_fn


@torch.no_grad()
def _inputs(model: nn.Module, images: Tensor) -> dict[nn.Module, Tensor]:
    """What each convolution is called with first, in the order of the calls."""
    found: dict[nn.Module, Tensor] = {}

    def note(conv: nn.Module, x: Tensor) -> None:
        found.setdefault(conv, x.detach().contiguous())

    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    handles = [conv.register_forward_pre_hook(lambda conv, args: note(conv, args[0])) for conv in convolutions]
    try:
        with evaluating(model):
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return found
