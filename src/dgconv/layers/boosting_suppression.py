"""Feature boosting and suppression (FBS), Gao et al., ICLR 2019: each image computes only its most salient outputs."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..ops.geometry import Size2
from ..values import FACTOR, SHARE
from ._conv import full_precision, takes_images
from ._stepwise import StepwiseLayer, steps_done
from .gate import HeadGate, keep_count
from .method import Knob, MacCall, Method, register_method

BetaFor = Literal["winners", "all"]


class FeatureBoostingConv2d(StepwiseLayer, nn.Conv2d):
    r"""Predicts the saliency of every output channel from the pooled input; the winners are boosted, the rest skipped.

    .. math:: x' = \pi \cdot \mathrm{norm}(W * x) + [\pi \text{ won}] \, \beta, \qquad
              \pi = \mathrm{wta}_{\lceil d C' \rceil}\big( (\phi \, p(|x|) + \rho)_+ \big)

    wta keeps the largest and zeroes the others (ties: lowest index), p is global average pooling and norm a batch norm
    without weight and bias, whose part the saliency and beta play. So the layer ``normalizes``: no batch norm follows.
    The paper's ReLU does. A suppressed output is zero, and the next layer may skip it as an input too. (The authors'
    code keeps what is above the first that loses: a zero never wins. Here it may, among zeros, and gives beta.)

    The density d starts at 1 and falls by ``density_step`` at equal intervals over the first half of the training (the
    authors fine-tune a trained network at each density). Without a trainer the target holds.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias: as in ``nn.Conv2d``;
            but no bias unless asked for.
        density: d, the share of the outputs that each image computes.
        density_step: by how much the density falls at a time.
        beta_for: ``"winners"``: a suppressed output is zero, as in the authors' code. ``"all"``: it is beta, as in the
            paper's equation, whose beta stands outside of what pi multiplies; then the next layer has no zeros to skip.
        l1_weight: weight of the mean over images of the sum of the saliencies, those of the last call, in the loss.
    """

    normalizes = True
    cost_depends_on_image = True
    saliency: Tensor | None = None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2,
        stride: Size2 = 1,
        padding: Size2 | str = 0,
        dilation: Size2 = 1,
        groups: int = 1,
        bias: bool = False,
        *,
        density: float = 0.7,
        density_step: float = 0.1,
        beta_for: BetaFor = "winners",
        l1_weight: float = 1e-8,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        FBS.check(density=density, density_step=density_step, beta_for=beta_for, l1_weight=l1_weight)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            device=device, dtype=dtype,
        )  # fmt: skip
        self.density, self.density_step, self.l1_weight = density, density_step, l1_weight
        self.beta_for = beta_for
        self.generator = nn.Linear(in_channels, out_channels, device=device, dtype=dtype)  # phi and rho
        nn.init.trunc_normal_(self.generator.weight, std=0.05)
        nn.init.ones_(self.generator.bias)
        self.gate = HeadGate(out_channels, 1 - density, device=device)
        self.norm = nn.BatchNorm2d(out_channels, affine=False, device=device, dtype=dtype)
        self.shift = nn.Parameter(torch.full((out_channels,), 0.1, device=device, dtype=dtype))  # beta

    def keep_at(self, progress: float) -> int:
        steps = math.ceil(round((1 - self.density) / self.density_step, 6))
        density = max(self.density, 1 - self.density_step * steps_done(progress, steps))
        return keep_count(self.out_channels, 1 - density)

    def keep_only(self, keep: int) -> None:
        self.gate.keep.fill_(keep)

    @takes_images
    def forward(self, x: Tensor) -> Tensor:
        saliency = self.predict(x)
        self.saliency = saliency if self.training and self.l1_weight else None
        won = self.gate.mask(saliency)
        out = self.norm(super().forward(x))
        boost = saliency.where(won, 0).to(out.dtype)[:, :, None, None]
        shift = self.shift[None] if self.beta_for == "all" else self.shift.where(won, 0)
        return out * boost + shift.to(out.dtype)[:, :, None, None]

    def predict(self, x: Tensor) -> Tensor:
        """The saliencies ``[B, C']``, in the precision of the parameters: rounded ones would tie."""
        with full_precision(x):
            pooled = x.abs().mean((2, 3), dtype=torch.promote_types(x.dtype, torch.float32))
            return self.generator(pooled.to(self.shift.dtype)).relu()

    def winners(self, x: Tensor) -> Tensor:
        """Where the convolution is needed, ``[B, C']``: not for an output whose saliency won as a zero among zeros."""
        saliency = self.predict(x)
        return self.gate.mask(saliency) & (saliency > 0)

    def penalty(self, saliencies: object = ()) -> Tensor | None:
        saliency, self.saliency = self.saliency, None  # taken: left here it would keep the graph of the step alive
        return None if saliency is None else self.l1_weight * saliency.sum(1).mean()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, density={self.density:.4g}"

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave out the saliency: it holds on to the graph of one step."""
        return self.__dict__ | {"saliency": None}


def _macs(layer: FeatureBoostingConv2d, call: MacCall) -> tuple[float, float]:
    """The winners, times the input channels that are not zero all over; and the generator."""
    generator = layer.in_channels * layer.out_channels
    if call.convention == "authors":
        generator += call.x[0].numel() + 3 * layer.out_channels
    if not call.measured:
        return layer.gate.kept_share(1 - layer.density), generator
    inputs = call.x.flatten(2).any(2).float().mean(1)  # [B]
    outputs = layer.winners(call.x).float().mean(1)
    return float((inputs * outputs).mean()), generator


FBS = register_method(
    Method(
        "fbs",
        "FBS",
        FeatureBoostingConv2d,
        {"density": SHARE, "density_step": SHARE, "beta_for": None, "l1_weight": FACTOR},
        "dynamic: an image's losing outputs are neither computed nor read",
        Knob("density", cheapest=0.01, dearest=1.0),
        macs=_macs,
        choice_depends_on_image=True,
        cost_needs_zeros=True,
    )
)
