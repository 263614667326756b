"""How large a network may become that a file describes, so that few bytes cannot ask for much memory."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from ..errors import UserError

SLACK = 2  # times: a backbone may make some of its layers anew
MAKERS = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}  # what layers make tensors with


class Room(NamedTuple):
    """How many tensors a network may have, and how many numbers in all; ``why`` says what else it would be."""

    tensors: int
    numbers: int
    why: str

    @staticmethod
    def of(shapes: Mapping[str, Sequence[int]]) -> "Room":
        """The room that weights of these shapes need."""
        tensors, numbers = len(shapes), sum(map(math.prod, shapes.values()))
        why = f"larger than its weights, which are {numbers:,} numbers in {tensors:,} tensors"
        return Room(max(SMALL.tensors, SLACK * tensors), max(SMALL.numbers, SLACK * numbers), why)


SMALL = Room(5_000, 2**22, "")  # may be built in any case: comparing tells best what does not fit
MOST = 2**27  # numbers, half a gigabyte
WITHOUT_WEIGHTS = Room(50_000, MOST, f"larger than {MOST:,} numbers, the most without weights beside it")


class NoLargerThan(TorchFunctionMode):
    """Within it, layers are refused for which there is no room, before they take any memory."""

    def __init__(self, room: Room) -> None:
        super().__init__()
        self.room, self.tensors, self.numbers = room, 0, 0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in MAKERS:
            size = kwargs.get("size", args[0] if args and isinstance(args[0], Sequence) else args)
            self.tensors, self.numbers = self.tensors + 1, self.numbers + math.prod(size)
            if self.tensors > self.room.tensors or self.numbers > self.room.numbers:
                raise UserError(f"the network would be {self.room.why}")
        return function(*args, **kwargs)
