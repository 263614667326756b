"""Convolutions on a GPU: dynamic ones in Triton or as masked cuDNN, whichever is faster; static ones in cuDNN."""

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UserError
from ...ops.geometry import pair
from ..graph import BOUNDS, Activation, Conv, Norm
from ..run import torch_steps
from ..run.shapes import padding_of
from .order import heads_of, order_of

if TYPE_CHECKING:
    from ...ops.triton.dynamic_conv import Tile

Planes = tuple[Tensor, Tensor | None]  # with the sums over their pixels [B, T, C], if they are known
MASKED = "masked"  # the form that computes all channels, those left out as zeros
REPEATS = 5  # launches in a graph that is timed


@dataclass(frozen=True)
class Shape:
    """What decides which form is fastest."""

    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    heads: int
    keep: int
    kernel: int
    stride: int
    padding: int
    dtype: torch.dtype
    has_norm: bool
    by_head: bool


class DynamicConv:
    """A convolution with a head-wise gate. ``input_order`` is that of its input's channels in memory."""

    def __init__(
        self, step: Conv, input_order: Tensor, by_head: bool, device: torch.device, dtype: torch.dtype
    ) -> None:
        from ...ops.triton import dynamic_conv

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
        self.geometry = dynamic_conv.Geometry(kernel, *strides_pads)
        order = input_order
        self.places = order.argsort().int().to(device)
        self.weight = dynamic_conv.lay_out(step.weight, self.heads, order).to(device, dtype)
        own = order_of(step.weight.shape[0], self.heads)
        self.order = own if by_head else own.argsort().argsort()
        self.bias = _as_floats(step.bias if step.bias is None or not by_head else step.bias[own], device)
        self.masked_weight = _channels_last(step.weight[own][:, order].to(device, dtype))
        self.generator = tuple(
            weight.contiguous().to(device, torch.float32) for weight in (gate.weight1, gate.weight2.mT, gate.bias)
        )
        before = step.before
        self.norm = None
        if before is not None:
            scale, shift = (vector[order].to(device, torch.float32) for vector in (before.scale, before.shift))
            self.norm = dynamic_conv.Norm(scale.contiguous(), shift.contiguous(), before.activation)

    def shape(self, x: Tensor) -> Shape:
        geometry = self.geometry
        batch, channels, height, width = x.shape
        return Shape(
            batch, channels, height, width, self.outputs, self.heads, self.keep, geometry.kernel, geometry.stride,
            geometry.padding, x.dtype, self.norm is not None, self.by_head,
        )  # fmt: skip

    def __call__(self, planes: Planes, residual: Tensor | None, form: "Tile | str", with_sums: bool) -> Planes:
        from ...ops.triton import dynamic_conv

        x, sums = planes
        if sums is None or self.norm is not None:
            sums = dynamic_conv.sums(x, self.norm)
        weight1, weight2, bias = self.generator
        index, gates = dynamic_conv.select(sums, x[0, 0].numel(), weight1, weight2, bias, self.keep, self.places)
        if isinstance(form, str):
            return self._masked(x, index, gates, residual), None
        return dynamic_conv.convolve(
            x, index, gates, self.weight, self.bias, self.keep, self.outputs, self.geometry, form, norm=self.norm,
            residual=residual, activation=self.activation, by_head=self.by_head, with_sums=with_sums,
        )  # fmt: skip

    def _masked(self, x: Tensor, index: Tensor, gates: Tensor, residual: Tensor | None) -> Tensor:
        """A copy of the input for each head, what it leaves out being zero, and a group for each."""
        channels, geometry = x.shape[1], self.geometry
        every = torch.zeros(*gates.shape[:2], channels, device=x.device).scatter_add_(2, index.long(), gates)
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


def candidates(shape: Shape) -> list["Tile | str"]:
    """Forms worth trying."""
    from ...ops.triton.dynamic_conv import Geometry, Tile, slots_for

    geometry = Geometry(shape.kernel, shape.stride, shape.padding)
    pixels = geometry.output(shape.height) * geometry.output(shape.width)
    slots = slots_for(shape.keep)
    wide = min(128, max(16, 1 << (shape.outputs - 1).bit_length()))
    depths = [depth for depth in (64, 32, 16) if slots % depth == 0][:2]
    found: list[Tile | str] = []
    few = shape.batch * shape.heads * -(-pixels // 64) * -(-shape.outputs // wide) < 264  # programs: two a processor
    narrow = [wide, max(16, wide // 4)] if few else [wide, *([wide // 2] if wide > 64 else [])]
    for block_m in sorted(
        {
            16 if few and pixels < 64 else 64,
            64,
            *([128] if pixels > 64 else []),
            *([256] if 128 < pixels <= 256 else []),
        }
    ):
        for block_n in narrow:
            for depth in depths:
                warps = 8 if block_m * block_n > 8192 else 4
                found.append(Tile(block_m, block_n, depth, True, warps, 4))
                if not shape.has_norm and depth == depths[0]:
                    found.append(Tile(block_m, block_n, depth, False, warps, 2 if block_m > 128 else 3))
    return [*dict.fromkeys(found), MASKED]


CHOSEN: dict[tuple[str, Shape], "Tile | str"] = {}  # by the GPU's name


def choose(
    calls: dict[Shape, Callable[["Tile | str"], Any]],
    device: torch.device,
    tried: list[tuple[Shape, Any, Any]] | None = None,
) -> dict[Shape, "Tile | str"]:
    """The fastest form of each layer, by measurement; remembered for the next network. Without a GPU the first one.

    ``tried`` takes what was measured: a shape, a form, and its seconds or the error that it ended with.
    """
    if device.type != "cuda":
        return {shape: candidates(shape)[0] for shape in calls}
    from ...ops.compile_ahead import compiling_ahead

    name = torch.cuda.get_device_name(device)
    new = {shape: call for shape, call in calls.items() if (name, shape) not in CHOSEN}
    broken: dict[tuple[Shape, Any], str] = {}
    if new:
        with suppress(Exception), compiling_ahead(device):  # whatever fails will do so again, and be told
            for shape, call in new.items():
                for form in candidates(shape):
                    try:
                        if form != MASKED:
                            call(form)
                    except Exception as error:  # a tile that does not fit this GPU
                        broken[shape, form] = f"{type(error).__name__}: {error}"
    for shape, call in new.items():
        times: dict[Any, float] = {}
        for form in candidates(shape):
            if (shape, form) not in broken:
                try:
                    times[form] = seconds(lambda call=call, form=form: call(form), device)  # type: ignore[misc]
                except Exception as error:
                    broken[shape, form] = f"{type(error).__name__}: {error}"
            if tried is not None:
                tried.append((shape, form, broken.get((shape, form), times.get(form))))
        if not times:
            raise UserError(f"no form of a convolution runs on {name}: {broken[shape, MASKED]}")
        CHOSEN[name, shape] = min(times, key=times.__getitem__)
    return {shape: CHOSEN[name, shape] for shape in calls}


def seconds(call: Callable[[], Any], device: torch.device, repeats: int = REPEATS) -> float:
    """Of one call, as part of a CUDA graph."""
    return statistics.median(samples(captured(call, device, repeats))) / repeats


def samples(graph: torch.cuda.CUDAGraph, count: int = 5) -> list[float]:
    graph.replay()
    found = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1000)
    return found


def captured(call: Callable[[], Any], device: torch.device, repeats: int = 1) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        call()
        call()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    # torch.cuda.graph would collect garbage each time, which takes longer than the rest
    with torch.cuda.stream(stream), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        graph.capture_begin()
        try:
            for _ in range(repeats):
                call()
        finally:
            graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph
