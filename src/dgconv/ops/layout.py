"""How images lie in memory: plane by plane, or the channels of each pixel together."""

import torch
from torch import Tensor


def is_channels_last(x: Tensor) -> bool:
    """Whether channels lie together, and not, as planes of one pixel do, plane by plane at the same time."""
    return not x.is_contiguous() and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def empty_like_layout(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Room for a result, in the memory format of the input, as ``conv2d`` gives it."""
    layout = torch.channels_last if is_channels_last(x) else torch.contiguous_format
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)
