"""Gradients that nothing waits for before the optimizer, computed beside the rest of a backward pass.

A small network's kernels do not fill a GPU, and half of those of a backward pass give gradients of parameters. Around
a backward pass in :func:`overlapping` these run on a second stream, and the parameters get them at the end.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class _Side:
    """A second stream of a device, of the priority of the first: that one waits for it."""

    def __init__(self, device: torch.device, priority: int) -> None:
        self.stream = torch.cuda.Stream(device, priority=priority)
        self.done: torch.cuda.Event | None = None  # the last piece of work
        self.read: tuple[Tensor, ...] = ()  # by it: their memory must not be given to others yet
        self.found: list[tuple[Tensor, Tensor]] = []  # parameters and their gradients

    def catch_up(self) -> None:
        """The main stream waits for the side."""
        if self.done is not None:
            torch.cuda.current_stream().wait_event(self.done)
        self.done, self.read = None, ()

    def run(self, work: Callable[[], tuple[Tensor, ...]], read: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.catch_up()  # one piece at a time, so that little memory is held
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            results = work()
            self.done = self.stream.record_event()
        self.read = read
        return results

    def hand_out(self) -> None:
        self.catch_up()
        for parameter, gradient in self.found:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self.found = []


_sides: dict[tuple[torch.device, int], _Side] = {}
_active: _Side | None = None  # global, because autograd goes back in a thread of its own


@contextmanager
def overlapping(device: torch.device) -> Iterator[None]:
    """Surrounds a backward pass whose gradients only the optimizer uses: hooks on parameters are not called."""
    global _active
    if device.type != "cuda":
        yield
        return
    place = device, torch.cuda.current_stream(device).priority
    _active = _sides.setdefault(place, _Side(*place))
    try:
        yield
        _active.hand_out()
    finally:
        _active.found = []
        _active = None


def beside(
    parameters: tuple[Tensor, ...], work: Callable[[], tuple[Tensor, ...]], read: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of ``parameters`` that ``work`` computes from ``read``: at once, or None if they come later."""
    if _active is None or not all(parameter.is_leaf for parameter in parameters):
        return work()
    _active.found += zip(parameters, _active.run(work, read), strict=True)
    return (None,) * len(parameters)
