"""Dynamic group convolution as it is usually published: H masked copies of the input, kept for the backward pass."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dgconv import DynamicGroupConv2d


class MaskedCopiesConv2d(DynamicGroupConv2d):
    """The same result from ``H * C`` input channels and a grouped convolution, by plain autograd."""

    def forward(self, x: Tensor) -> Tensor:
        saliency = self.generator(x)
        self.saliency = saliency if self.training else None
        gates = self.gate(saliency).to(x.dtype)  # [B, H, C]
        copies = (x[:, None] * gates[..., None, None]).flatten(1, 2)  # [B, H*C, height, width]
        by_head = torch.cat([self.weight[head :: self.heads] for head in range(self.heads)])
        out = F.conv2d(copies, by_head, None, self.stride, self.padding, self.dilation, self.heads)
        return out.unflatten(1, (self.heads, -1)).transpose(1, 2).flatten(1, 2)
