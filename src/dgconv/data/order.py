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


def batches_of(order: Tensor, batch_size: int, start: int, shard: tuple[int, int]) -> list[Tensor]:
    """The indices of each batch from number `start` on, or what one process of several takes of them."""
    shares = [batch[shard[0] :: shard[1]] for batch in order.split(batch_size)[start:]]
    return [share for share in shares if len(share)]


def draw(high: int, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Whole numbers in [0, high), on the CPU, whatever device `generator` lives on."""
    return torch.randint(high, shape, generator=generator, device=_home(generator)).cpu()


def _home(generator: torch.Generator | None) -> torch.device:
    """torch draws only on the generator's own device."""
    return generator.device if generator is not None else torch.device("cpu")
