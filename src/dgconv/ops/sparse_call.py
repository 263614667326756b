"""What all kernels for training are given, beside tensors."""

from ctypes import c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from . import native
from .structs import Planes, Selection


@dataclass
class Chosen:
    """The channels that each head of each image keeps, as the kernels take them."""

    selection: Selection
    most: int
    memory: tuple[Tensor, ...]  # which the selection points to

    @classmethod
    def of(cls, gates: Tensor, kept: Tensor) -> "Chosen":
        gates, kept = gates.contiguous(), kept.contiguous()
        channels = torch.empty(gates.shape, dtype=torch.int32)
        chosen_gates, counts = torch.empty_like(gates), torch.empty(gates.shape[:2], dtype=torch.int32)
        memory = (channels, chosen_gates, counts)
        most = native.library().dgconv_sparse_select(
            kept.data_ptr(), gates.data_ptr(), counts.numel(), gates.shape[2], *(part.data_ptr() for part in memory)
        )
        return cls(Selection(*(part.data_ptr() for part in memory)), max(1, most), memory)


def planes(images: Tensor) -> Planes:
    return Planes(c_void_p(images.data_ptr()), images[0].numel(), *images.shape[1:])
