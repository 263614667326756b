"""How the authors' public code computes the layer in training, in our own words: the form to beat.

A module for each head, and each does everything by itself: pools the input again, scores the channels, sorts out the
lowest, makes its own scaled copy of the whole input, and convolves that. Nothing is shared between heads, and autograd
keeps all H copies. Their BN and ReLU inside the layer are left out: the networks here have them in front of it.

Where the description leaves a choice, the cheaper way is taken: the number of pruned channels is a Python int, not read
back from the device at each step, and gates are masked before they meet the image, which makes one copy, not two.
"""

import torch
from torch import Tensor, nn

from dgconv import DynamicGroupConv2d
from dgconv.layers import keep_count
from dgconv.layers.saliency import hidden_width


class AuthorsHead(nn.Module):
    """One head: its own generator (``fc1``, ``fc2``) and its own ``conv``."""

    def __init__(self, in_channels: int, hidden: int, conv: nn.Conv2d) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Linear(in_channels, hidden, bias=False)
        self.relu1 = nn.ReLU(inplace=True)
        self.fc2 = nn.Linear(hidden, in_channels)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv = conv
        nn.init.kaiming_normal_(self.fc1.weight)
        nn.init.kaiming_normal_(self.fc2.weight)
        nn.init.ones_(self.fc2.bias)

    def forward(self, x: Tensor, pruned: int) -> tuple[Tensor, Tensor]:
        """The head's output channels, and its term of the lasso."""
        g = self.relu2(self.fc2(self.relu1(self.fc1(self.pool(x).flatten(1)))))  # [B, C]
        lasso = g.mean()
        gate = g
        if pruned > 0:
            threshold = g.detach().kthvalue(pruned, dim=1, keepdim=True).values
            gate = g.clone()
            gate[g <= threshold] = 0
        return self.conv(x * gate[:, :, None, None].expand_as(x)), lasso


class AuthorsFormConv2d(nn.Module):
    """Drops in for nn.Conv2d, with the options of :class:`dgconv.DynamicGroupConv2d`.

    Computes what that layer computes with ``keep_rule="round"`` and ``tie_rule="drop"``. After a forward pass
    ``lasso`` is the sum over heads of the mean saliency; see :func:`take_lasso`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        heads: int = 4,
        bias: bool = False,
        *,
        pruning_rate: float = 0.75,
        squeeze: int = 16,
        halve_squeeze: bool = True,
    ) -> None:
        super().__init__()
        self.pruned = in_channels - keep_count(in_channels, pruning_rate, "round")
        hidden = hidden_width(in_channels, squeeze, halve_squeeze)
        geometry = (in_channels, out_channels // heads, kernel_size, stride, padding, dilation)
        self.heads = nn.ModuleList(
            AuthorsHead(in_channels, hidden, nn.Conv2d(*geometry, bias=bias)) for _ in range(heads)
        )
        for head in self.heads:
            nn.init.kaiming_normal_(head.conv.weight, mode="fan_out")
        self.lasso: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        outputs, terms = zip(*(head(x, self.pruned) for head in self.heads), strict=True)
        self.lasso = sum(terms)
        out = torch.cat(outputs, 1)
        batch, channels, height, width = out.shape
        out = out.view(batch, len(self.heads), channels // len(self.heads), height, width)
        return out.transpose(1, 2).contiguous().view(batch, channels, height, width)  # the shuffle

    @torch.no_grad()
    def load_from(self, layer: DynamicGroupConv2d) -> None:
        """Take over the weights, and the number of channels kept, of one of our layers."""
        self.pruned = layer.in_channels - int(layer.gate.keep)
        for index, head in enumerate(self.heads):
            head.conv.weight.copy_(layer.weight[index :: layer.heads])
            if layer.bias is not None:
                head.conv.bias.copy_(layer.bias[index :: layer.heads])
            head.fc1.weight.copy_(layer.generator.weight1[index])
            head.fc2.weight.copy_(layer.generator.weight2[index])
            head.fc2.bias.copy_(layer.generator.bias[index])


def take_lasso(model: nn.Module) -> Tensor:
    """The lasso of the last forward pass, summed over layers, and taken out of them: it holds on to a graph."""
    layers = [module for module in model.modules() if isinstance(module, AuthorsFormConv2d)]
    total = sum(layer.lasso for layer in layers)
    for layer in layers:
        layer.lasso = None
    return total
