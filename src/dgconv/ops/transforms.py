"""``torch.func``, whose transforms (grad, vmap, jvp, ...) see through torch's own operations only."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from .geometry import Pair


def transforming() -> bool:
    """Whether a transform of ``torch.func`` is at work, in which torch refuses the gradients of a custom operation,
    however it was registered (pytorch issue 168393); or forward-mode differentiation, for which it has no rule."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def has_values(x: Tensor) -> bool:
    """Whether values may be looked at: they are there, on a CPU, and nobody takes down what is done with them."""
    is_taken_down = torch.compiler.is_compiling() or torch.jit.is_tracing() or transforming()
    is_taken_down = is_taken_down or torch._C._len_torch_dispatch_stack() > 0
    return type(x) is Tensor and x.device.type == "cpu" and not is_taken_down


def composed(x: Tensor, weight: Tensor, gates: Tensor, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """The reference for all images at once, of torch's operations alone: any transform fits, but H copies of the input
    are kept."""
    heads = gates.shape[1]
    parts = [
        F.conv2d(x * gates[:, head, :, None, None], weight[head::heads], None, stride, padding, dilation)
        for head in range(heads)
    ]
    return torch.stack(parts, dim=2).flatten(1, 2)  # [B, C'/H, H, ...]: channel i*H + h
