"""Convolutions on a GPU: dynamic ones in Triton or as masked cuDNN, whichever is faster; static ones in cuDNN."""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UserError
from ...ops.geometry import pair
from ..graph import BOUNDS, Activation, Conv, Norm
from ..run import torch_steps
from ..run.shapes import padding_of
from .forms import GateShape, Shape
from .order import heads_of, order_of

if TYPE_CHECKING:
    from ...ops.triton.selection import GateTile, Selection
    from ...ops.triton.tiles import Tile

Planes = tuple[Tensor, Tensor | None]  # with the sums over their pixels [B, T, C], if they are known


class DynamicConv:
    """A convolution with a head-wise gate. ``input_order`` is that of its input's channels in memory."""

    def __init__(
        self, step: Conv, input_order: Tensor, by_head: bool, device: torch.device, dtype: torch.dtype
    ) -> None:
        from ...ops.triton import dynamic_conv, tiles

        gate, kernel = step.gate, step.weight.shape[2]
        assert gate is not None
        if gate.keep is None:
            raise _refusal(step, "its gate is the global one, and the kernels are for head-wise gates")
        strides_pads = (step.stride[0], step.padding[0])
        if step.weight.shape[2:] != (kernel, kernel) or kernel not in (1, 3):
            raise _refusal(step, f"its window is {list(step.weight.shape[2:])}, and the kernels take 1x1 and 3x3")
        if step.stride != pair(strides_pads[0]) or step.padding != pair(strides_pads[1]):
            raise _refusal(step, "its stride or padding differs between the two directions")
        if step.same or any(step.extra_padding) or step.dilation != (1, 1) or step.groups != 1:
            raise _refusal(step, "it has dilation, groups, or more padding on one side")
        self.label, self.activation, self.keep, self.by_head = step.label, step.activation, gate.keep, by_head
        self.heads, self.outputs = heads_of(step), step.weight.shape[0] // heads_of(step)
        self.geometry = tiles.Geometry(kernel, *strides_pads)
        order = input_order
        self.places = order.argsort().int().to(device)
        weights = dynamic_conv.lay_out(step.weight, self.heads, order, by_head)
        self.weights = dynamic_conv.Weights(weights.kept.to(device, dtype), weights.whole.to(device, dtype))
        own = order_of(step.weight.shape[0], self.heads)
        self.order = own if by_head else own.argsort().argsort()
        self.bias = _as_floats(step.bias if step.bias is None or not by_head else step.bias[own], device)
        self.masked_weight = _channels_last(step.weight[own][:, order].to(device, dtype))
        self.generator = tuple(
            weight.contiguous().to(device, torch.float32)
            for weight in (gate.weight1[..., order], gate.weight2.mT, gate.bias)
        )
        before = step.before
        self.norm = None
        if before is not None:
            scale, shift = (vector[order].to(device, torch.float32) for vector in (before.scale, before.shift))
            self.norm = tiles.Norm(scale.contiguous(), shift.contiguous(), before.activation)

    def shape(self, x: Tensor) -> Shape:
        geometry = self.geometry
        batch, channels, height, width = x.shape
        return Shape(
            batch, channels, height, width, self.outputs, self.heads, self.keep, geometry.kernel, geometry.stride,
            geometry.padding, x.dtype, self.norm is not None, self.by_head,
        )  # fmt: skip

    def gate_shape(self, x: Tensor) -> GateShape:
        heads, width, channels = self.generator[0].shape
        return GateShape(x.shape[0], x[0, 0].numel(), channels, heads, width, self.keep)

    def select(self, planes: Planes, arrivals: int, tile: "GateTile | None") -> "Selection":
        from ...ops.triton import planes as pooling
        from ...ops.triton import selection

        x, sums = planes
        if sums is None or self.norm is not None:
            sums = pooling.sums(x, self.norm)
        weight1, weight2, bias = self.generator
        return selection.select(sums, x[0, 0].numel(), weight1, weight2, bias, self.keep, self.places, arrivals, tile)

    def __call__(
        self,
        planes: Planes,
        residual: Tensor | None,
        form: "Tile | str",
        with_sums: bool,
        gate_tile: "GateTile | None" = None,
    ) -> Planes:
        from ...ops.triton import dynamic_conv

        x, arrivals = planes[0], 1
        if not isinstance(form, str):
            pixels = self.geometry.output(x.shape[2]) * self.geometry.output(x.shape[3])
            arrivals = dynamic_conv.arrivals_for(form, pixels, self.heads, self.outputs)
        selected = self.select(planes, arrivals, gate_tile)
        if isinstance(form, str):
            return self._masked(x, selected.every, residual), None
        return dynamic_conv.convolve(
            x, selected, self.weights, self.bias, self.keep, self.outputs, self.geometry, form, norm=self.norm,
            residual=residual, activation=self.activation, by_head=self.by_head, with_sums=with_sums,
        )  # fmt: skip

    def _masked(self, x: Tensor, every: Tensor, residual: Tensor | None) -> Tensor:
        """A copy of the input for each head, what it leaves out being zero, and a group for each."""
        geometry = self.geometry
        x = normalize(x, self.norm)
        copies = _channels_last((x[:, None] * every[..., None, None].to(x.dtype)).flatten(1, 2))
        out = F.conv2d(copies, self.masked_weight, None, geometry.stride, geometry.padding, 1, self.heads)
        if not self.by_head:
            out = out.unflatten(1, (self.heads, -1)).transpose(1, 2).flatten(1, 2)
        return finish(_channels_last(out), self.bias, residual, self.activation)


class StaticConv:
    """Left to cuDNN, with what comes before and after it."""

    def __init__(
        self, step: Conv, input_order: Tensor, output_order: Tensor, device: torch.device, dtype: torch.dtype
    ) -> None:
        if step.boost is not None or step.picks is not None:
            raise _refusal(step, "its way of leaving out channels has no kernel for a GPU")
        weight = step.weight[output_order]
        self.weight = _channels_last((weight[:, input_order] if step.groups == 1 else weight).to(device, dtype))
        self.bias = _as_floats(None if step.bias is None else step.bias[output_order], device)
        self.interleaves = step.interleaved and torch.equal(output_order, torch.arange(len(output_order)))
        if self.interleaves:  # cuDNN has the groups one after the other
            by_group = order_of(len(step.weight), step.groups)
            self.weight = _channels_last(step.weight[by_group].to(device, dtype))
        self.step = step
        self.norm = normalization(step.before, input_order, device)

    def convolve(self, x: Tensor) -> Tensor:
        step = self.step
        x = normalize(x, self.norm)
        padding, extra = padding_of(step, tuple(x.shape[1:]))
        if any(extra):
            x = F.pad(x, (0, extra[1], 0, extra[0]))
        out = F.conv2d(x, self.weight, None, step.stride, padding, step.dilation, step.groups)
        if self.interleaves:
            out = out.unflatten(1, (step.groups, -1)).transpose(1, 2).flatten(1, 2)
        return _channels_last(out)

    def __call__(self, x: Tensor, residual: Tensor | None) -> Tensor:
        step = self.step
        return finish(self.convolve(x), self.bias, residual, step.activation)


def _refusal(step: Conv, reason: str) -> UserError:
    return UserError(
        f"{step.label or step.output} cannot be prepared for a GPU: {reason}. Use the original model there"
    )


def _as_floats(x: Tensor | None, device: torch.device) -> Tensor | None:
    return None if x is None else x.to(device, torch.float32).contiguous()


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def normalization(norm: Norm | None, order: Tensor, device: torch.device) -> Norm | None:
    if norm is None:
        return None
    return Norm(norm.scale[order].to(device), norm.shift[order].to(device), norm.activation)


def activate(x: Tensor, activation: Activation | str) -> Tensor:
    if activation == "identity":
        return x
    if activation not in BOUNDS:
        return torch_steps.activate(x, activation)  # type: ignore[arg-type]
    return x.relu_() if activation == "relu" else x.clamp_(0, 6)


def normalize(x: Tensor, norm: Any) -> Tensor:
    if norm is None:
        return x
    shape = (-1, *[1] * (x.dim() - 2))
    scale, shift = (vector.to(x.dtype).view(shape) for vector in (norm.scale, norm.shift))
    return activate(torch.addcmul(shift, x, scale), norm.activation)


def finish(out: Tensor, bias: Tensor | None, residual: Tensor | None, activation: Activation) -> Tensor:
    """In place."""
    if bias is not None:
        out += bias.to(out.dtype)[:, None, None]
    if residual is not None:
        out += residual
    return activate(out, activation)
