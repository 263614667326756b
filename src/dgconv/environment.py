"""What something was trained or measured on: the header that every figure carries."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .errors import UserError

NO_MEMORY = ("DefaultCPUAllocator", "MemoryError in DataLoader worker")  # what torch says of the machine's own memory


def refuse_missing_gpu(device: str) -> None:
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"no GPU is to be seen by torch {torch.__version__}. Use the device cpu, "
            "or see that the driver works ('nvidia-smi') and torch is a CUDA build"
        )


def is_lack_of_memory(error: Exception) -> bool:
    """Whether memory was lacking, of the GPU or of the machine; for the latter torch has no error of its own."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY)


def describe_environment(device: torch.device | str) -> dict[str, str | int]:
    """Hardware, threads, torch and date."""
    return {
        "hardware": torch.cuda.get_device_name() if torch.device(device).type == "cuda" else cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def has_fast_bfloat16(device: torch.device | str) -> bool:
    """Whether bfloat16 takes less time than float32: on GPUs since Ampere, and CPUs with instructions for it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.machine()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread for a while: a few images are too little work to share, and on a busy machine
    threads make it many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
