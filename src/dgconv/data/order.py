"""Which images a pass visits, in which order: the same rule for every kind of split."""

import torch
from torch import Tensor

from ..errors import UserError


def epoch_order(count: int, batch_size: int, *, train: bool, generator: torch.Generator | None) -> Tensor:
    """The indices of one pass; cut it every `batch_size` to get the batches.

    Training drops the last incomplete batch, whose few images would get a larger say each and noisy batch
    statistics, unless it is the only one.
    """
    if batch_size < 1:
        raise UserError(f"batch size {batch_size} is not allowed; give a whole number of at least 1.")
    if not train:
        return torch.arange(count)
    order = torch.randperm(count, generator=generator, device=_home(generator)).cpu()
    return order[: max(count // batch_size * batch_size, min(count, batch_size))]


def draw(high: int, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Whole numbers in [0, high), on the CPU, whatever device `generator` lives on."""
    return torch.randint(high, shape, generator=generator, device=_home(generator)).cpu()


def _home(generator: torch.Generator | None) -> torch.device:
    """torch draws only on the generator's own device."""
    return generator.device if generator is not None else torch.device("cpu")
