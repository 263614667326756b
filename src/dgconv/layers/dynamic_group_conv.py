"""Dynamic group convolution (DGC), Su, Fang et al., ECCV 2020, as a layer that drops in for nn.Conv2d."""

import math
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..ops import dynamic_group_conv2d, fused, sparse_training
from ..ops.geometry import Size2, whole_pair
from ..ops.layout import is_channels_last
from ..values import BELOW_ONE, FACTOR, SIZE
from ._conv import pad_images, resolve_padding, takes_images
from .gate import Gate, GlobalGate, HeadGate, KeepRule, TieRule, check_pruning_rate
from .method import Knob, MacCall, Method, register_method
from .saliency import SaliencyGenerator

SaliencyStart = Literal["random", "calm", "ones"]
MAX_FUSED_HIDDEN, MAX_FUSED_CHANNELS = 256, 4096  # what one program of the fused gate holds


class DynamicGroupConv2d(nn.Module):
    r"""Splits the output channels over heads; each head convolves only the best input channels, per image.

    .. math:: x'^{i} = (x_\upsilon \cdot g^i_\upsilon) \otimes \theta^i_\upsilon, \quad
              \upsilon = \mathrm{top}_{\lceil (1-\xi) C \rceil}(g^i)

    The paper's symbols: H is ``heads``, xi ``pruning_rate``, d ``squeeze``, tau and T the gate's threshold.
    Head h owns the output channels h, h+H, h+2H, ...: "concatenate and shuffle" costs nothing.
    ``weight`` has the shape it has in ``nn.Conv2d``, so a dense checkpoint loads.

    The target rate holds in training and evaluation alike, unless a schedule moves ``gate``. In training the
    layer leaves the saliency of its last call, before pruning, in ``self.saliency`` for the losses.

    In the transforms of ``torch.func`` it takes the memory of H copies of its input. For ``torch.fx`` it must be a
    leaf: see :mod:`dgconv.layers`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, bias: as in ``nn.Conv2d``;
            but no bias unless asked for.
        heads: groups of output channels, each with its own choice of input channels.
        pruning_rate: share of the input channels each head leaves out, in [0, 1).
        squeeze: d, by which the generator's hidden layer is narrower than its input.
        halve_squeeze: halve it where a layer has few channels, as the authors' code does.
        gate: ``"head"`` keeps the same number of channels in every head; ``"global"`` (DGC-G) compares with one
            threshold for the whole network, which a trainer must set.
        keep_rule: how a fraction of a channel is rounded: ceil as in the paper, round as in the authors' code.
        tie_rule: who goes when saliencies tie: the higher index, or drop all of them, as the authors' code does.
        saliency_start: where saliencies start: at random as in the paper, calm, which is at random but near 1, as
            ResNets need it not to overflow, or all at exactly 1.
        per_head_init: initial scale from the fan-out of one head, C'/H, as in the authors' code; otherwise from
            all of C', as the undivided convolution has it.
        score_noise: ours, not the paper's: noise on the scores while training, in standard deviations of them.
        exploration: ours: share of the training images whose channels are chosen at random.
        scales: no leaves what is kept unscaled, to learn what the scale is worth; not native in ``dgconv.deploy``.
    """

    pruning_rate: float
    """The target, which a schedule ends at. What is pruned now is the gate's to say: a schedule may be on its way, and
    a ``state_dict`` holds the gate's count but no target. After loading one of another rate, :meth:`set_pruning_rate`
    makes that the target too."""

    saliency: Tensor | None

    same = False
    """Whether padding is by TensorFlow's rule of "same", with any stride: in place of a layer that did so."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2,
        stride: Size2 = 1,
        padding: Size2 | str = 0,
        dilation: Size2 = 1,
        heads: int = 4,
        bias: bool = False,
        *,
        pruning_rate: float = 0.75,
        squeeze: int = 16,
        halve_squeeze: bool = True,
        gate: Literal["head", "global"] = "head",
        keep_rule: KeepRule = "ceil",
        tie_rule: TieRule = "lowest_index",
        per_head_init: bool = True,
        saliency_start: SaliencyStart = "random",
        score_noise: float = 0.0,
        exploration: float = 0.0,
        scales: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not all(isinstance(count, Integral) for count in (in_channels, out_channels, heads)):
            raise UserError(
                "in_channels, out_channels and heads must be whole numbers, "
                f"got {in_channels!r}, {out_channels!r} and {heads!r}"
            )
        if in_channels < 1:
            raise UserError(f"in_channels must be at least 1, got {in_channels}")
        if heads < 1 or out_channels < 1 or out_channels % heads:
            raise UserError(
                f"heads must divide out_channels: {heads} heads, {out_channels} output channels. "
                f"Use one of {[h for h in range(1, out_channels + 1) if out_channels % h == 0][:8]}"
            )
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.kernel_size, self.stride = whole_pair("kernel_size", kernel_size, 1), whole_pair("stride", stride, 1)
        self.dilation = whole_pair("dilation", dilation, 1)
        self.padding, self.extra_padding = resolve_padding(padding, self.kernel_size, self.stride, self.dilation)
        DGC.check(squeeze=squeeze, keep_rule=keep_rule, tie_rule=tie_rule, saliency_start=saliency_start)
        DGC.check(score_noise=score_noise, exploration=exploration, scales=scales)
        self.pruning_rate = check_pruning_rate(pruning_rate)
        self.per_head_init, self.saliency_start = per_head_init, saliency_start

        self.weight = nn.Parameter(
            torch.empty(out_channels, in_channels, *self.kernel_size, device=device, dtype=dtype)
        )
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.generator = SaliencyGenerator(
            in_channels,
            heads,
            squeeze,
            halve_squeeze=halve_squeeze,
            signed=gate == "global",
            device=device,
            dtype=dtype,
        )
        if gate == "head":
            self.gate: Gate = HeadGate(
                in_channels,
                pruning_rate,
                keep_rule=keep_rule,
                tie_rule=tie_rule,
                score_noise=score_noise,
                exploration=exploration,
                scales=scales,
                device=device,
            )
        elif gate == "global":
            self.gate = GlobalGate(device=device)
        else:
            raise UserError(f"gate must be 'head' or 'global', got {gate!r}")
        self.saliency = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Kaiming-normal by fan-out, the generator's own start, and the gate's: all that ``to_empty`` leaves open."""
        outputs = self.out_channels // self.heads if self.per_head_init else self.out_channels
        nn.init.normal_(self.weight, std=math.sqrt(2 / (outputs * math.prod(self.kernel_size))))
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.generator.reset_parameters()
        if self.saliency_start == "calm":
            self.generator.calm()
        if self.saliency_start == "ones":
            self.generator.reset_to_ones()
        self.gate.reset(self.pruning_rate)

    def set_pruning_rate(self, pruning_rate: float) -> None:
        """A new target rate, effective at once for the head-wise gate."""
        self.pruning_rate = check_pruning_rate(pruning_rate)
        self.gate.set_rate(pruning_rate)

    @property
    def cost_depends_on_image(self) -> bool:
        return self.gate.cost_depends_on_image

    @takes_images
    def forward(self, x: Tensor, means: Tensor | None = None) -> Tensor:
        """``means`` of the planes of x, [B, C], may save the fused kernels a pass over it."""
        out, saliency = self._forward_fused(x, means) if self._can_fuse(x) else self._forward_plain(x)
        self.saliency = saliency if self.training else None
        return out

    def _forward_plain(self, x: Tensor) -> tuple[Tensor, Tensor]:
        saliency = self.generator(x)  # [B, H, C]
        if not self._knows_kept(x, saliency):
            return self._convolve(x, self.gate(saliency).to(x.dtype)), saliency
        kept = self.gate.mask(saliency)
        self.gate.observe(saliency, kept)
        return self._convolve(x, self.gate.passed(saliency, kept), kept), saliency

    def _knows_kept(self, x: Tensor, saliency: Tensor) -> bool:
        """Whether the gate only chooses, so that what it leaves out needs no gradient and no time."""
        gate = self.gate
        only_chooses = type(gate) in (HeadGate, GlobalGate) and not gate._forward_hooks and not gate._forward_pre_hooks
        return only_chooses and sparse_training.fits(x, self.weight, saliency)

    def _convolve(self, x: Tensor, gates: Tensor, kept: Tensor | None = None) -> Tensor:
        padded, geometry = self.padded(x), (self.stride, self.padding, self.dilation)
        out = dynamic_group_conv2d(padded, self.weight, gates, *geometry, kept)
        return self._add_bias(out)

    def padded(self, x: Tensor) -> Tensor:
        """Images with all zeros around them that ``padding`` does not stand for."""
        if not self.same and not any(self.extra_padding):
            return x
        return pad_images(x, self.extra_padding, self.same, self.kernel_size, self.stride, self.dilation)

    def _add_bias(self, out: Tensor) -> Tensor:
        return out if self.bias is None else out + self.bias[:, None, None].to(out.dtype)

    def _can_fuse(self, x: Tensor) -> bool:
        """Whether the fused form can run: on a GPU pooling, generator and gate are a few kernels instead of some fifty,
        unless you have put your own in their place or hooks on them."""
        gate, generator = self.gate, self.generator
        if not fused.fits(x) or gate.fused_limits() is None or type(generator) is not SaliencyGenerator:
            return False
        if not fused.fits_weight(x, self.weight):  # the plain form tells what is wrong
            return False
        fits_a_tile = generator.hidden <= MAX_FUSED_HIDDEN and self.in_channels <= MAX_FUSED_CHANNELS
        has_hooks = any(part._forward_hooks or part._forward_pre_hooks for part in (gate, generator))
        return fits_a_tile and generator.bias.dtype == torch.float32 and not has_hooks

    def _forward_fused(self, x: Tensor, means: Tensor | None) -> tuple[Tensor, Tensor]:
        gate, generator = self.gate, self.generator
        limits = gate.fused_limits()
        assert limits is not None
        parameters = (generator.weight1, generator.weight2, generator.bias, *limits)
        is_pointwise = self.kernel_size == self.stride == (1, 1) and self.padding == (0, 0)
        if is_pointwise and x.is_contiguous():
            out, saliency, mask = fused.dynamic_pointwise(x, means, self.weight, *parameters)
            out = self._add_bias(out)
        elif self.kernel_size != (1, 1) and not any(self.extra_padding) and not self.same and is_channels_last(x):
            geometry = (self.stride, self.padding, self.dilation)
            out, saliency, mask = fused.dynamic_by_head(x, self.weight, *parameters, *geometry)
            out = self._add_bias(out)
        else:
            pooled = x.mean((2, 3), dtype=torch.float32)
            saliency, gates, mask = fused.saliency_gate(pooled, *parameters)
            out = self._convolve(x, gates.to(x.dtype))
        gate.observe(saliency, mask)
        return out, saliency

    def extra_repr(self) -> str:
        rate = f"{self.pruning_rate:.4g}"
        if not self.gate.prunes_at(self.pruning_rate):
            rate = f"{1 - self.gate.kept_share(self.pruning_rate):.4g} (target {rate})"
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={'same' if self.same else self.padding}, dilation={self.dilation}, heads={self.heads}, "
            f"bias={self.bias is not None}, pruning_rate={rate}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave out the saliency: it holds on to the graph of one step."""
        return self.__dict__ | {"saliency": None}


def _macs(layer: DynamicGroupConv2d, call: MacCall) -> tuple[float, float]:
    gate, generator = layer.gate, _generator_macs(layer, call)
    if gate.cost_depends_on_image and call.measured:
        return float(gate.mask(layer.generator(call.x)).float().mean()), generator
    if call.convention == "authors" and gate.prunes_at(layer.pruning_rate):
        return 1 - layer.pruning_rate, generator  # not rounded
    return gate.kept_share(layer.pruning_rate), generator


def _generator_macs(layer: DynamicGroupConv2d, call: MacCall) -> float:
    """One of your own is taken to use each of its weights once for an image."""
    generator = layer.generator
    if not isinstance(generator, SaliencyGenerator):
        return sum(parameter.numel() for parameter in generator.parameters() if parameter.dim() > 1)
    macs = layer.heads * 2 * layer.in_channels * generator.hidden
    if call.convention == "authors":
        macs += call.x[0].numel() + layer.heads * (generator.hidden + 3 * layer.in_channels)
    return macs


_OPTIONS = {
    "pruning_rate": BELOW_ONE, "heads": SIZE, "squeeze": SIZE, "halve_squeeze": None, "per_head_init": None,
    "saliency_start": None,
}  # fmt: skip
_AT_EQUAL_MACS = {"saliency_start": "ones", "generator_shrinkage": 6.0}  # in a few epochs as in the paper's many
DGC = register_method(
    Method(
        "dgc",
        "DGC",
        DynamicGroupConv2d,
        {
            **_OPTIONS,
            "keep_rule": None,
            "tie_rule": None,
            "score_noise": FACTOR,
            "exploration": BELOW_ONE,
            "scales": None,
        },
        "dynamic: each image's left out channels are never read",
        Knob("pruning_rate", cheapest=0.999, dearest=0.0),
        {"gate": "head"},
        macs=_macs,
        choice_depends_on_image=True,
        at_equal_macs=_AT_EQUAL_MACS,
    )
)
DGCG = register_method(
    replace(
        DGC,
        name="dgcg",
        title="DGC-G",
        options=_OPTIONS,
        fixed={"gate": "global"},
        at_equal_macs={**_AT_EQUAL_MACS, "threshold_share": "macs", "threshold_every": 1},
    )
)
