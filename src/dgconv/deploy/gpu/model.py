"""A model prepared for a GPU: the steps of its graph, captured as one CUDA graph for each shape of images."""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from .. import graph as kinds
from ..calls import called
from ..graph import Graph, Step, activated_apart, values_read
from ..run import torch_steps
from .branches import Branch, find_aside
from .choice import captured, choose, samples
from .forms import CUDNN, MASKED
from .layers import DynamicConv, StaticConv, activate, normalization, normalize
from .order import find_heads, order_of
from .stem import Stem

MOST_SHAPES = 8  # of images, whose graphs are held
MOST_ASIDE = 1 << 22  # pixels of all images, up to which branches side by side are tried: then a GPU has room for them


class GpuModel(nn.Module):
    """What :func:`~dgconv.deploy.prepare` makes of a model for a GPU: images in, float32 out.

    The first call with images of a new shape measures which form of each layer is fastest for it, and captures a CUDA
    graph; the calls after it replay that. A result is the caller's own.
    """

    why_not_counted = "a prepared model has no layers left to count; count the model that it was prepared from"

    def __init__(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.graph, self.device, self.dtype, self.training = graph, device, dtype, False
        self.steps = list(_split(graph.steps))
        self.heads = find_heads(Graph(graph.input, graph.output, self.steps))
        reads = [name for step in self.steps for name in values_read(step)]
        self._pooled = _pools_after(self.steps, reads, graph.output)
        self._wants_sums = {
            step.input
            for step in self.steps
            if ((isinstance(step, kinds.Conv) and step.gate) or isinstance(step, kinds.GlobalPool))
            and step.before is None
        }
        self._last_read = {name: step.output for step in self.steps for name in values_read(step)}
        self._aside = find_aside(self.steps)
        self._channels: dict[str, int] = {}
        self.layers: dict[str, Any] = {}
        for step in self.steps:
            if (layer := self._layer(step)) is not None:
                self.layers[step.output] = layer
        self._graphs: dict[tuple[torch.Size, torch.dtype], tuple[Any, Tensor, Tensor]] = {}
        self.forms: dict[Any, Any] = {}
        self.side_by_side: dict[torch.Size, bool] = {}  # whether branches are so, by the shape of images
        self.tried: list[tuple[Any, Any, Any]] = []  # forms that were measured, and their seconds or what went wrong

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
            raise UserError("expected images [batch, channels, height, width] of floats")
        if x.device.type != self.device.type:
            raise UserError(f"this model was prepared for {self.device}, got images on {x.device}; move them there")
        if not len(x):
            raise UserError("expected at least one image")
        if self.device.type != "cuda":
            return self._run(x, self._choose(x))
        key = (x.shape, x.dtype)
        if key not in self._graphs:
            if len(self._graphs) >= MOST_SHAPES:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = self._capture(x)
        graph, images, result = self._graphs[key]
        images.copy_(x)
        graph.replay()
        return result.clone()

    def train(self, mode: bool = True) -> "GpuModel":
        if mode:
            raise UserError("a prepared model does not train; train the original, and prepare it again")
        return self

    def replay(self, x: Tensor) -> torch.cuda.CUDAGraph:
        """The captured graph for these images, to be timed."""
        self(x)
        graph: torch.cuda.CUDAGraph = self._graphs[x.shape, x.dtype][0]
        return graph

    def _capture(self, x: Tensor) -> tuple[Any, Tensor, Tensor]:
        images = x.clone(memory_format=torch.channels_last)
        forms = self._choose(images)
        found = self._captured(images, forms, None)
        self.side_by_side[x.shape] = False
        if self._aside and x[:, 0].numel() <= MOST_ASIDE:
            other = self._captured(images, forms, Branch(self.device))
            if statistics.median(samples(other[0])) < statistics.median(samples(found[0])):
                found, self.side_by_side[x.shape] = other, True
        return found[0], images, found[1]

    def _captured(self, images: Tensor, forms: dict[Any, Any], branch: Branch | None) -> tuple[Any, Tensor]:
        results: list[Tensor] = []
        graph = captured(lambda: results.append(self._run(images, forms, branch=branch)), self.device)
        return graph, results[-1]

    def _choose(self, x: Tensor) -> dict[Any, Any]:
        calls: dict[Any, Any] = {}
        with torch.backends.cudnn.flags(enabled=True, benchmark=False):  # it is run for its shapes only
            self._run(x, None, calls)
        forms = choose(calls, self.device, self.tried)
        self.forms |= forms
        return forms

    def _layer(self, step: Step) -> Any:
        """What the step needs of the device; it is known by now how many channels its input has."""
        device, dtype = self.device, self.dtype
        match step:
            case kinds.Conv():
                channels, outputs = step.weight.shape[1] * step.groups, step.weight.shape[0]
                self._channels |= {step.input: channels, step.output: outputs}
                order = order_of(channels, self.heads[step.input])
                if step.gate is not None:
                    return DynamicConv(step, order, self.heads[step.output] > 1, device, dtype)
                own = order_of(outputs, self.heads[step.output])
                conv = StaticConv(step, order, own, device, dtype)
                pool = self._pooled.get(step.output)
                return Stem(step, conv, own, device, dtype) if pool and Stem.fits(step, pool) else conv
            case kinds.Pool() | kinds.GlobalPool() | kinds.Elementwise():
                norm = step.norm if isinstance(step, kinds.Elementwise) else step.before
                channels = len(norm.scale) if norm else self._channels.get(step.input, 0)
                self._channels[step.output] = channels
                return normalization(norm, order_of(channels, self.heads[step.input]), device) if norm else None
            case kinds.Linear():
                order = order_of(step.weight.shape[1], self.heads[step.input])
                bias = None if step.bias is None else step.bias.to(device, dtype)
                return step.weight[:, order].to(device, dtype), bias
            case kinds.LayerNorm() | kinds.Resize() | kinds.Pad() | kinds.Slice():
                self._channels[step.output] = (
                    step.count if isinstance(step, kinds.Slice) else self._channels.get(step.input, 0)
                )
                if isinstance(step, kinds.LayerNorm):
                    return replace(step, scale=step.scale.to(device, dtype), shift=step.shift.to(device, dtype))
                return step
            case kinds.Concat():
                self._channels[step.output] = sum(self._channels.get(name, 0) for name in step.inputs)
                return None
            case kinds.Torch() if not isinstance(called(step.function), nn.Module):
                return None
        raise UserError(
            f"{step.label or step.output} cannot be prepared for a GPU"
            + (f": {step.reason}" if isinstance(step, kinds.Torch) else "")
            + ". Use the original model there"
        )

    def _run(
        self, x: Tensor, forms: dict[Any, Any] | None, calls: dict[Any, Any] | None = None, branch: Branch | None = None
    ) -> Tensor:
        """All steps. Without forms every dynamic convolution is masked, and ``calls`` takes how to run each."""
        if branch is not None and not torch.cuda.is_current_stream_capturing():
            branch = None
        values: dict[str, Any] = {self.graph.input: x.to(self.dtype).contiguous(memory_format=torch.channels_last)}
        sums: dict[str, Tensor] = {}
        for step in self.steps:
            if branch is not None and not branch.open.isdisjoint(values_read(step)):
                branch.join()
            if branch is not None and isinstance(step, kinds.Conv) and step.output in self._aside:
                if self.layers[step.output].norm is None:  # the next step may want the same sums
                    self._sums(step.input, values, sums)
                read = values_read(step)
                held = [table[name] for table in (values, sums) for name in read if name in table]
                with branch.aside(step.output, *held):
                    self._run_step(step, values, sums, forms, calls)
            else:
                self._run_step(step, values, sums, forms, calls)
            for name in values_read(step):
                if self._last_read[name] == step.output and name != self.graph.output:
                    values.pop(name, None)
                    sums.pop(name, None)
        if branch is not None and branch.open:
            branch.join()
        out: Tensor = values[self.graph.output]
        return out.float()

    def _run_step(
        self, step: Step, values: dict[str, Any], sums: dict[str, Tensor], forms: Any, calls: dict[Any, Any] | None
    ) -> None:
        layer: Any = self.layers.get(step.output)
        match step:
            case kinds.Conv():
                x, residual = values[step.input], None if step.residual is None else values[step.residual]
                if isinstance(layer, Stem):  # the pooling's turn comes next
                    values[step.output] = x
                    return
                if not isinstance(layer, DynamicConv):
                    values[step.output] = layer.convolve(x) if step.output in self._pooled else layer(x, residual)
                    return
                planes = (x, None if layer.norm else self._sums(step.input, values, sums))
                wants_sums, shape, gate = step.output in self._wants_sums, layer.shape(x), layer.gate_shape(x)

                def call(form: Any, tile: Any = None) -> Any:
                    return layer(planes, residual, form, wants_sums, tile)

                if calls is not None:
                    calls.setdefault(shape, call)
                    parts = x.new_zeros(len(x), max(1, gate.pixels // 64), gate.channels, dtype=torch.float32)
                    calls.setdefault(gate, lambda tile: layer.select((x, parts), 1, tile))  # as convolutions leave them
                values[step.output], found = call(*((MASKED,) if forms is None else (forms[shape], forms[gate])))
                if found is not None:
                    sums[step.output] = found
            case kinds.Pool():
                x = values[step.input]
                if step.input in self._pooled:
                    values[step.output], sums[step.output] = self._pool_after(step, x, forms, calls)
                    return
                pool = F.max_pool2d if step.kind == "max" else F.avg_pool2d
                values[step.output] = pool(normalize(x, layer), step.kernel, step.stride, step.padding)
            case kinds.GlobalPool():
                x = values[step.input]
                if layer is None:
                    parts = self._sums(step.input, values, sums)
                    total = parts[:, 0] if parts.shape[1] == 1 else parts.sum(1)
                    pooled = torch.empty_like(total, dtype=self.dtype)
                    values[step.output] = torch.mul(total, 1 / x[0, 0].numel(), out=pooled)  # and rounded, in one
                else:
                    values[step.output] = normalize(x, layer).mean((2, 3), dtype=torch.float32).to(self.dtype)
            case kinds.Linear():
                values[step.output] = activate(F.linear(values[step.input], *layer), step.activation)
            case kinds.Elementwise():
                x = values[step.input] if step.order is None else values[step.input][:, step.order]
                x = normalize(x, layer) if layer else x.clone()
                if step.factor is not None:
                    x = x * values[step.factor].view(*x.shape[:2], *[1] * (x.dim() - 2))
                values[step.output] = activate(x if step.other is None else x.add_(values[step.other]), step.activation)
            case kinds.LayerNorm() | kinds.Resize() | kinds.Pad() | kinds.Slice():
                y = torch_steps.run_step(layer or step, values)
                is_planes = y.dim() == 4
                values[step.output] = y.contiguous(memory_format=torch.channels_last) if is_planes else y.contiguous()
            case kinds.Concat():
                joined = torch.cat([values[name] for name in step.inputs], 1)
                values[step.output] = joined
            case kinds.Torch():
                values[step.output] = step.function(*[values[name] for name in step.inputs])

    def _pool_after(
        self, step: kinds.Pool, x: Tensor, forms: Any, calls: dict[Any, Any] | None
    ) -> tuple[Tensor, Tensor]:
        """With bias and activation of the convolution before it; the whole of a stem."""
        from ...ops.triton import planes, tiles

        conv = self.layers[step.input]
        if isinstance(conv, Stem):
            shape = conv.shape(x)
            if calls is not None:
                calls.setdefault(shape, lambda form: conv(x, form))
            return conv(x, CUDNN if forms is None else forms[shape])
        window = tiles.Geometry(step.kernel[0], step.stride[0], step.padding[0])
        return planes.max_pool(x, conv.bias, conv.step.activation, window)

    def _sums(self, name: str, values: dict[str, Any], sums: dict[str, Tensor]) -> Tensor:
        if name not in sums:
            from ...ops.triton import planes

            sums[name] = planes.sums(values[name].contiguous(memory_format=torch.channels_last))
        return sums[name]


def _split(steps: list[Step]) -> Iterator[Step]:
    """Pairs of convolutions that are one step on the CPU are two again."""
    for step in steps:
        if isinstance(step, kinds.Conv) and step.expansion is not None:
            yield from activated_apart(step.expansion)
            yield from activated_apart(replace(step, input=step.expansion.output, expansion=None))
        else:
            yield from activated_apart(step)


def _pools_after(steps: list[Step], reads: list[str], output: str) -> dict[str, kinds.Pool]:
    """Static convolutions that only a max-pooling reads: bias and activation come after it, when less is left."""
    convs = {
        step.output
        for step in steps
        if isinstance(step, kinds.Conv) and step.gate is None and step.residual is None and step.output != output
    }
    return {
        step.input: step
        for step in steps
        if isinstance(step, kinds.Pool) and step.kind == "max" and step.input in convs and reads.count(step.input) == 1
        and step.before is None and len({*step.kernel}) == len({*step.stride}) == len({*step.padding}) == 1
    }  # fmt: skip
