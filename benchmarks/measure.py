"""Time and peak memory of one form, in this process.

Memory is all that training needs: weights, gradients, momentum, batch and what the step computes.

- On a CPU, ``bytes`` is the peak of the process's resident memory over what the libraries hold after a tiny step.
- On a GPU, ``bytes`` is the peak of live tensors (``max_memory_allocated``) and ``reserved`` the peak of what the
  process holds on the device (``max_memory_reserved``), both from 0, since the process is new.

Which of the two is honest depends on the form. An eager step needs ``bytes``; what its allocator reserves beyond that
is a cache that it can give back. A graph replays at fixed addresses: its pool is held as long as the graph, and nobody
else can use the gaps. Replays allocate nothing, but the capture goes through the same allocator, so ``bytes`` still is
the peak of live tensors in the step, while ``reserved`` holds the whole pool. We report both for every form, each with
its ratio to the same figure of the authors' form. A claim about peak memory should stand by both; the strictest
reading, ``reserved`` of a graph over ``bytes`` of the authors' form, is in the rows.
"""

import gc
import resource
import statistics
from typing import Any

import torch
from forms import FORMS, WARM_UP, Step

from dgconv.bench.timing import time_side_by_side

Row = dict[str, float | int | str | None]


def measure(form: str, backbone: str, batch_size: int, device: str, repeats: int, **options: Any) -> Row:
    try:
        if device == "cuda":
            return measure_gpu(form, backbone, batch_size, repeats, **options)
        return measure_cpu(form, backbone, batch_size, repeats, **options)
    except Exception as error:
        if is_out_of_memory(error):
            return {"error": "out of memory"}
        raise


def measure_cpu(form: str, backbone: str, batch_size: int, repeats: int, **options: Any) -> Row:
    FORMS[form](backbone, 2, "cpu", **options)()
    gc.collect()
    before = peak_resident()
    step = FORMS[form](backbone, batch_size, "cpu", **options)
    losses: list[torch.Tensor] = []
    seconds = time_side_by_side({form: lambda: losses.append(step())}, repeats)[form]
    return row(seconds, peak_resident() - before, None, losses[-1])


def measure_gpu(form: str, backbone: str, batch_size: int, repeats: int, **options: Any) -> Row:
    torch.backends.cudnn.benchmark = True  # for all forms: sizes never change, so whoever trains turns it on
    step = FORMS[form](backbone, batch_size, "cuda", **options)
    for _ in range(WARM_UP):
        step()
    seconds, loss = time_gpu(step, repeats)
    return row(seconds, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), loss)


def time_gpu(step: Step, repeats: int) -> tuple[list[float], torch.Tensor]:
    """Seconds of each step by the device's clock; the host runs ahead, as it does in training."""
    starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(repeats)] for _ in range(2))
    torch.cuda.synchronize()
    for start, end in zip(starts, ends, strict=True):
        start.record()
        loss = step()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in zip(starts, ends, strict=True)], loss


def row(seconds: list[float], peak: int, reserved: int | None, loss: torch.Tensor) -> Row:
    """``spread`` is between the quartiles, as a share of the median. A ``loss`` of NaN means that a form is broken."""
    quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [0.0, 0.0, 0.0]
    median = statistics.median(seconds)
    return {
        "seconds": median,
        "spread": (quartiles[2] - quartiles[0]) / median,
        "bytes": peak,
        "reserved": reserved,
        "loss": float(loss),
    }


def peak_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also where another error followed from it, as in a capture that was broken off."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
