"""A fair sample of a stream of unknown length, in bounded memory."""

import random

import torch
from torch import Tensor


class Reservoir:
    """Vitter's algorithm R: after any number of items each is held with the same chance.

    Which ones is decided by the seed and the number of items alone, not by how they were batched.
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size, self.seen = size, 0
        self._random = random.Random(seed)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Chooses among the next ``count`` items: the rows to hold, and the slot that each takes."""
        held: dict[int, int] = {}  # by slot: a later row takes an earlier one's place
        for row in range(count):
            slot = self.seen if self.seen < self.size else self._random.randrange(self.seen + 1)
            if slot < self.size:
                held[slot] = row
            self.seen += 1
        return torch.tensor(list(held.values()), dtype=torch.long), torch.tensor(list(held), dtype=torch.long)

    @property
    def filled(self) -> int:
        return min(self.seen, self.size)
