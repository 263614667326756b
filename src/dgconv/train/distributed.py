"""Several processes training one network, started by torchrun: who they are, and what they must agree on."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from ..layers.fusible import BatchNormReLU2d

TIMEOUT = timedelta(minutes=10)  # for processes that wait for each other


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    return dist.get_world_size() if is_distributed() else 1


def started_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_restart() -> bool:
    """Whether torchrun has started this process again after one of the group died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def join(device: str) -> str:
    """Join the processes torchrun started; the device of this one. NCCL between GPUs, gloo between CPUs."""
    if device == "cuda":
        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        device = f"cuda:{local}"
    backend = "nccl" if device.startswith("cuda") else "gloo"
    store, rank, world_size = next(rendezvous("env://"))
    # torchrun keeps its store over a restart, and with it the addresses of the processes that died
    fresh = dist.PrefixStore(f"dgconv-start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=world_size, timeout=TIMEOUT)
    return device


def leave() -> None:
    if is_distributed():
        dist.destroy_process_group()


@contextmanager
def exiting_at_once() -> Iterator[None]:
    """Surrounds all that a process does: one of torchrun's then ends without Python's usual clearing up.

    Threads of gloo stay after their group is gone if there was a ``DistributedDataParallel``, and one of them that lets
    go of a tensor while Python clears up aborts the process (pytorch issues 190489 and 179291).
    """
    if not started_by_torchrun():
        yield
        return
    status = 0
    try:
        yield
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Adds up over all ranks, in place."""
    if is_distributed():
        dist.all_reduce(values)
    return values


def gather_over_ranks(values: Tensor) -> Tensor:
    """The values of all ranks, of which each must have as many, in one vector."""
    if not is_distributed():
        return values
    gathered = [torch.empty_like(values) for _ in range(world_size())]
    dist.all_gather(gathered, values)
    return torch.cat(gathered)


def any_rank(condition: bool, device: torch.device) -> bool:
    """Whether the condition holds on one of the ranks. All must ask."""
    if not is_distributed():
        return condition
    return bool(sum_over_ranks(torch.tensor(float(condition), device=device)))


def wait_for_ranks(device: torch.device) -> None:
    """Waits until all ranks have come to this point."""
    any_rank(False, device)


class _Sum(torch.autograd.Function):
    """A sum over ranks that gradients flow through: each rank's value is in the sum of every rank."""

    @staticmethod
    def forward(ctx, values: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return sum_over_ranks(values.clone())

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return sum_over_ranks(gradient.clone())


class SyncBatchNorm2d(nn.BatchNorm2d):
    """Batch normalization with the statistics of all ranks, on CPUs too (torch's own needs GPUs).

    Every rank must have as many images as the others.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        count = x.numel() // x.shape[1] * world_size()
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = _Sum.apply(values.sum((0, 2, 3))) / count
        centred = values - mean[:, None, None]  # E[x²] - E[x]² would lose digits
        variance = _Sum.apply(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            momentum = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (count / max(1, count - 1)), momentum)
        out = centred * (variance + self.eps).rsqrt()[:, None, None]
        if self.affine:
            out = out * self.weight[:, None, None] + self.bias[:, None, None]
        return out.to(x.dtype)


class SyncBatchNormReLU2d(SyncBatchNorm2d, BatchNormReLU2d):
    """The same for :class:`~dgconv.layers.fusible.BatchNormReLU2d`, which it is otherwise, as for the MAC count."""

    def forward(self, x: Tensor, and_more: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor | None]:  # type: ignore[override]
        out = super().forward(x).relu()
        return (out, x, None) if and_more else out


def synchronize_batch_norm(model: nn.Module) -> None:
    """Put :class:`SyncBatchNorm2d` in the place of every batch norm, with its parameters and statistics."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncBatchNorm2d
        elif type(module) is BatchNormReLU2d:
            module.__class__ = SyncBatchNormReLU2d
