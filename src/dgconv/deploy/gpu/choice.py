"""Which form of each convolution is fastest on this GPU, by measurement."""

import statistics
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from ...errors import UserError
from .forms import CUDNN, MASKED, GateShape, Shape, StemShape, candidates

REPEATS = 5  # launches in a graph that is timed
CHOSEN: dict[tuple[str, Shape | StemShape | GateShape], Any] = {}  # by the GPU's name


def choose(
    calls: dict[Any, Callable[[Any], Any]],
    device: torch.device,
    tried: list[tuple[Any, Any, Any]] | None = None,
) -> dict[Any, Any]:
    """The fastest form of each layer, by measurement; remembered for the next network. Without a GPU the first one.

    ``tried`` takes what was measured: a shape, a form, and its seconds or the error that it ended with.
    """
    if device.type != "cuda":
        return {shape: candidates(shape)[0] for shape in calls}
    from ...ops.compile_ahead import compiling_ahead

    name = torch.cuda.get_device_name(device)
    new = {shape: call for shape, call in calls.items() if (name, shape) not in CHOSEN}
    broken: dict[tuple[Any, Any], str] = {}
    if new:
        with suppress(Exception), compiling_ahead(device):  # whatever fails will do so again, and be told
            for shape, call in new.items():
                for form in candidates(shape):
                    try:
                        if form not in (MASKED, CUDNN):
                            call(form)
                    except Exception as error:  # a tile that does not fit this GPU
                        broken[shape, form] = f"{type(error).__name__}: {error}"
    for shape, call in new.items():
        times: dict[Any, float] = {}
        for form in candidates(shape):
            if form == MASKED and times and shape.heads > 1:
                continue  # a copy of the input for each head, many times slower wherever it was measured
            if (shape, form) not in broken:
                try:
                    times[form] = seconds(lambda call=call, form=form: call(form), device)  # type: ignore[misc]
                except Exception as error:
                    broken[shape, form] = f"{type(error).__name__}: {error}"
            if tried is not None:
                tried.append((shape, form, broken.get((shape, form), times.get(form))))
        if not times:
            raise UserError(f"no form of a convolution runs on {name}: {broken[shape, candidates(shape)[-1]]}")
        CHOSEN[name, shape] = min(times, key=times.__getitem__)
    return {shape: CHOSEN[name, shape] for shape in calls}


def seconds(call: Callable[[], Any], device: torch.device, repeats: int = REPEATS) -> float:
    """Of one call, as part of a CUDA graph."""
    return statistics.median(samples(captured(call, device, repeats))) / repeats


def samples(graph: torch.cuda.CUDAGraph, count: int = 5) -> list[float]:
    graph.replay()
    found = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1000)
    return found


def captured(call: Callable[[], Any], device: torch.device, repeats: int = 1) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        call()
        call()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    # torch.cuda.graph would collect garbage each time, which takes longer than the rest
    with torch.cuda.stream(stream), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        graph.capture_begin()
        try:
            for _ in range(repeats):
                call()
        finally:
            graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph
