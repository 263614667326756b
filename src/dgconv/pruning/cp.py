"""Channel pruning (CP), He et al. 2017: a lasso chooses channels, least squares rebuild what reads them."""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers._conv import resolve_padding
from ..layers.method import Method, register_method
from ._layer_by_layer import LayerByLayer, Pass, by_input, from_input, groups_of, readers_of, units_to_inputs, watching
from .base import SMALLER, best_of
from .channels import ChannelSet, Layer, Member

POSITIONS = 10  # of each image, at which a feature map is sampled
CHUNK = 16  # images that are unfolded at a time
RIDGE = 1e-3  # of the mean square of the inputs: how much it takes to move a weight from where it was


class ChannelPruning(LayerByLayer):
    r"""Chooses which inputs of a layer it takes to make its outputs, and rebuilds these from them.

    .. math:: \min_{\beta} \frac{1}{2N} \Big\lVert Y - \sum_i \beta_i X_i W_i^\top \Big\rVert_F^2
              + \lambda \lVert \beta \rVert_1, \qquad
              \min_{W'} \Big\lVert Y - \sum_{\beta_i \ne 0} X_i W_i'^\top \Big\rVert_F^2

    Y are outputs of the whole network at sampled places, X the inputs there with all layers before pruned. lambda rises
    until no more channels than wanted are left. The least squares start
    from the weights as they are, so that few images do not move what they do not tell about.

    A third of the training is for the dense network, the rest trains what is left. The authors start from a trained
    network (``init_from``), sample 5000 images, and spread the rate over the layers by hand; here all have the same.
    """

    final_from = 1 / 3

    @torch.no_grad()
    def choose_of(
        self, model: nn.Module, whole: nn.Module, channel_set: ChannelSet, keep: int, images: Tensor, labels: Tensor
    ) -> Tensor:
        names = [member.layer for member in readers_of(channel_set)]
        with watching(model, names) as now, watching(whole, names) as before:
            model(images)
            whole(images)
        systems = [
            _System(member, member.of(model), now[member.layer], before[member.layer].outputs)
            for member in readers_of(channel_set)
        ]
        gram, target = (torch.stack(parts).sum(0) for parts in zip(*((s.gram, s.target) for s in systems), strict=True))
        kept = lasso_choice(gram, target, keep)
        for system in systems:
            system.rebuild(kept)
        return kept


class _System:
    """The least-squares problem of one reader, in normal equations: sums over the sampled places."""

    def __init__(self, member: Member, reader: Layer, now: Pass, wanted: Tensor) -> None:
        self.member, self.reader, self.groups = member, reader, groups_of(reader)
        self.rows = by_input(reader.weight.detach().double().cpu(), self.groups)  # [C, C'/G, k²]
        inputs, outputs = _sampled(reader, now.inputs, wanted)
        if reader.bias is not None:
            outputs = outputs - reader.bias.detach().double().cpu()
        grouped = inputs.unflatten(1, (self.groups, -1)).flatten(2).transpose(0, 1)  # [G, N, C/G k²]
        self.squares = grouped.mT @ grouped  # [G, C/G k², C/G k²]
        self.products = grouped.mT @ outputs.unflatten(1, (self.groups, -1)).transpose(0, 1)  # [G, C/G k², C'/G]
        self._sum_up_units()

    def _sum_up_units(self) -> None:
        """What the lasso needs: of each two units the product of what they contribute, and of each with what it is to
        make; without what other channels of the reader make."""
        channels, size = len(self.rows), self.rows.shape[2]
        weights = self._flat(self.rows)  # [G, C/G k², C'/G]
        contributions = self.squares * (weights @ weights.mT)
        of_pairs = contributions.unflatten(2, (-1, size)).sum(3).unflatten(1, (-1, size)).sum(2)  # [G, C/G, C/G]
        pairs = torch.block_diag(*of_pairs)  # channels of different groups share no output
        wanted = (self.products * weights).sum(2).unflatten(1, (-1, size)).sum(2).flatten()  # [C]
        units = torch.zeros(channels, len(self.member.channels), dtype=pairs.dtype)
        for unit, own in enumerate(self.member.channels):
            units[own, unit] = 1
        others = (units.sum(1) == 0).to(pairs.dtype)
        self.gram = units.t() @ pairs @ units
        self.target = units.t() @ (wanted - pairs @ others)

    def rebuild(self, kept: Tensor) -> None:
        """The weights that come nearest to the whole network's outputs with what is left to read."""
        there = units_to_inputs(self.member, kept, len(self.rows))
        rows = self.rows * there[:, None, None]
        mask = there.repeat_interleave(rows.shape[2]).view(self.groups, -1)  # [G, C/G k²]
        squares = self.squares * mask[:, :, None] * mask[:, None, :]
        ridge = RIDGE * squares.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-12)
        system = squares + ridge[:, None, None] * torch.eye(squares.shape[1], dtype=squares.dtype)
        start = self._flat(rows)
        moved = start + torch.linalg.solve(system, mask[:, :, None] * (self.products - squares @ start))
        rebuilt = moved.unflatten(1, (-1, rows.shape[2])).transpose(2, 3).flatten(0, 1)  # [C, C'/G, k²]
        weight = self.reader.weight
        weight.data.copy_(from_input(rebuilt, weight, self.groups))

    def _flat(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (self.groups, -1)).transpose(2, 3).flatten(1, 2)  # [G, C/G k², C'/G]


def lasso_choice(gram: Tensor, target: Tensor, keep: int) -> Tensor:
    """The units that a lasso leaves when its weight is so large that no more than ``keep`` are left."""
    from sklearn.linear_model import lasso_path  # takes a second to import

    sizes, directions = torch.linalg.eigh(gram)
    roots = sizes.clamp(min=1e-9 * float(sizes[-1]) + 1e-30).sqrt()
    columns = roots[:, None] * directions.t()  # a problem of as few rows as columns that has these sums
    wanted = (directions.t() @ target) / roots
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a solution is not exact: which are zero is all that is asked
        _, path, _ = lasso_path(columns.numpy(), wanted.numpy(), eps=1e-4)
    coefficients = torch.from_numpy(path).abs()  # [units, steps], of falling lambda
    last = int(((coefficients > 0).sum(0) <= keep).nonzero().flatten()[-1])
    chosen, coming = (
        coefficients[:, last] > 0,
        coefficients[:, last:].amax(1),
    )  # where several come at once, the largest
    return best_of(coming + chosen * (1 + coming.max()), keep)


def _sampled(reader: nn.Module, inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Windows of the input [N, C, k²] and what is to be made of them [N, C'], in double precision on the CPU."""
    if isinstance(reader, nn.Linear):
        return inputs.flatten(0, -2)[:, :, None].double().cpu(), outputs.flatten(0, -2).double().cpu()
    assert isinstance(reader, nn.Conv2d)
    sizes: Any = (reader.padding, reader.kernel_size, reader.stride, reader.dilation)
    _, kernel, stride, dilation = sizes
    around, (below, right) = resolve_padding(*sizes)
    generator = torch.Generator().manual_seed(0)
    windows, wanted = [], []
    for x, y in zip(inputs.split(CHUNK), outputs.split(CHUNK), strict=True):
        columns = F.unfold(F.pad(x, (0, right, 0, below)), kernel, dilation, around, stride)  # [B, C k², places]
        places = torch.randint(columns.shape[2], (len(x), 1, POSITIONS), generator=generator).to(x.device)
        windows.append(columns.gather(2, places.expand(-1, columns.shape[1], -1)).transpose(1, 2).flatten(0, 1))
        wanted.append(y.flatten(2).gather(2, places.expand(-1, y.shape[1], -1)).transpose(1, 2).flatten(0, 1))
    sampled = torch.cat(windows).unflatten(1, (inputs.shape[1], -1))
    return sampled.double().cpu(), torch.cat(wanted).double().cpu()


CP = register_method(Method("cp", "CP", ChannelPruning, {}, SMALLER, prunes=True))
