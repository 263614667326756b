"""Random numbers on the CPU, whatever device a generator lives on: torch draws only on the generator's own."""

import torch
from torch import Tensor


def draw(high: int, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Whole numbers in [0, high)."""
    return torch.randint(high, shape, generator=generator, device=_home(generator)).cpu()


def shuffled(count: int, generator: torch.Generator | None) -> Tensor:
    """The whole numbers below `count`, in random order."""
    return torch.randperm(count, generator=generator, device=_home(generator)).cpu()


def _home(generator: torch.Generator | None) -> torch.device:
    return generator.device if generator is not None else torch.device("cpu")
