"""The equation of dynamic group convolution, one image and one head at a time.

Slow and obviously right: every fast form is tested against this one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def dynamic_group_conv2d_reference(
    x: Tensor,
    weight: Tensor,
    gates: Tensor,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
) -> Tensor:
    """For image b and head h:  ``out[b, h::H] = conv2d(x[b] * gates[b, h], weight[h::H])``.

    The paper's equation 6, with "concatenate and shuffle" written as an index: head h owns the output
    channels h, h+H, h+2H, ... A channel whose gate is zero adds nothing, so a fast form may skip it.

    Args:
        x: input ``[B, C, height, width]``.
        weight: as in ``nn.Conv2d``, ``[C', C, k, k]``.
        gates: the saliency of each channel a head keeps, zero for the others, ``[B, H, C]``.
    """
    heads = gates.shape[1]
    images = []
    for image, image_gates in zip(x, gates, strict=True):
        outputs = [
            F.conv2d(image * gate[:, None, None], weight[head::heads], None, stride, padding, dilation)
            for head, gate in enumerate(image_gates)
        ]
        images.append(torch.stack(outputs, dim=1).flatten(0, 1))  # [C'/H, H, ...]: channel i*H + h
    return torch.stack(images)
