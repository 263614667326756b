"""Convolutions whose result is not read at once: in a captured graph they run beside the steps that follow them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..graph import Conv, Step, values_read


def find_aside(steps: list[Step]) -> set[str]:
    """Outputs of dynamic convolutions that other convolutions come after, before the first reader."""
    found = set()
    for place, step in enumerate(steps):
        if isinstance(step, Conv) and step.gate is not None:
            later = steps[place + 1 :]
            reader = next((number for number, other in enumerate(later) if step.output in values_read(other)), 0)
            # convolutions only: other steps may change what they read
            if reader and all(isinstance(other, Conv) for other in later[:reader]):
                found.add(step.output)
    return found


class Branch:
    """A second stream during a capture.

    What it reads is held until the streams meet, for the allocator would give it away to the first stream meanwhile.
    What it makes is its own to give away, and it waits for the first stream before it begins anything.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.held: list[Any] = []
        self.open: set[str] = set()

    @contextmanager
    def aside(self, output: str, *held: Any) -> Iterator[None]:
        self.open.add(output)
        self.held += held
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        self.open.clear()
        self.held.clear()
