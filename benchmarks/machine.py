"""The header every measurement carries: what it was measured on, and when."""

import platform
import time
from pathlib import Path

import torch


def describe_machine(device: str) -> dict[str, str | int]:
    """Hardware, threads, versions and date."""
    hardware = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    return {
        "hardware": hardware,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.machine()
