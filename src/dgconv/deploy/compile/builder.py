"""What a rule has at hand while it writes steps: the values so far, and what is known of their shapes."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from ...ops.geometry import Pair
from ..calls import Slot, TorchCall, to_planes
from ..graph import Activation, Conv, Elementwise, GlobalPool, Linear, Norm, Pool, Step, Torch

ONE_PIXEL = ("one pixel",)


@dataclass(frozen=True)
class Grid:
    """How many images there are, and how large: as many as a value that came before has, and what happened since."""

    batch: str  # the value
    changes: tuple[str, ...] = ()

    def then(self, change: str) -> "Grid":
        return replace(self, changes=(*self.changes, change))

    def enlarged(self, factors: tuple[float, float]) -> "Grid":
        """What a stride made smaller, and the same factor larger again, is taken for what it was."""
        changes, left = list(self.changes), factors
        while changes and changes[-1] == f"stride {(2, 2)}" and min(left) >= 2:
            changes.pop()
            left = (left[0] / 2, left[1] / 2)
        return replace(self, changes=tuple(changes) if left == (1, 1) else (*self.changes, f"times {factors}"))

    def of_one_pixel(self) -> "Grid":
        return replace(self, changes=ONE_PIXEL)


@dataclass(frozen=True)
class Value:
    """A value of the graph. No image was seen yet, so its height and width are unknown.

    ``kind``: planes are [B, C, height, width], rows [B, features]; pixels are planes of which torch would have
    [B, height, width, C]; a shape, a batch size, and a size, which is height and width, are what they say.
    ``grid``: planes of the same grid can be added; what a broadcast might be hiding in is left to torch.
    ``rows``: the same numbers as [B, C], for planes of one pixel, or of one that was repeated.
    ``of``: the planes whose shape or size it is.
    """

    name: str
    kind: Literal["planes", "rows", "pixels", "shape", "batch size", "size", "other"] = "other"
    channels: int | None = None
    grid: Grid | None = None
    rows: str | None = None
    of: str | None = None

    @property
    def is_one_pixel(self) -> bool:
        return self.rows is not None and self.grid is not None and self.grid.changes == ONE_PIXEL

    def as_rows(self) -> "Value":
        """One pixel as [B, C]."""
        assert self.rows is not None
        return replace(self, name=self.rows, kind="rows", rows=None)


class NotNative(Exception):
    """No native step does this; ``like`` is what torch's result will be, if known."""

    def __init__(self, reason: str, like: Value | None = None) -> None:
        super().__init__(reason)
        self.reason, self.like = reason, like


class Builder:
    """Collects the steps. ``label`` says which layer of the model is being translated."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.label = ""
        self.views: list[tuple[str, str]] = []  # values that share memory in torch
        self._names: set[str] = set()
        self._channels: dict[str, int] = {}  # of values that nobody knew before a convolution read them

    def new_name(self, wish: str) -> str:
        name, count = wish, 1
        while name in self._names:
            count += 1
            name = f"{wish}_{count}"
        self._names.add(name)
        return name

    def add(self, step: Step) -> str:
        """Append a step; its output is named after the layer."""
        step.label = self.label
        step.output = self.new_name(self.label)
        self.steps.append(step)
        return step.output

    def elementwise(
        self,
        x: Value,
        norm: Norm | None = None,
        other: Value | None = None,
        activation: Activation = "identity",
        factor: str | None = None,
    ) -> Value:
        if x.is_one_pixel and (other is None or other.is_one_pixel):
            rows = self.elementwise(x.as_rows(), norm, other and other.as_rows(), activation, factor)
            return self.one_pixel(rows, is_last=x.kind == "pixels")
        step = Elementwise(x.name, "", norm, other.name if other else None, activation, factor=factor)
        channels = len(norm.scale) if norm else x.channels
        return Value(self.add(step), x.kind, channels, x.grid)

    def window(self, x: Value, step: Conv | Pool) -> Value:
        """A convolution or pooling, which reads x."""
        if x.is_one_pixel and isinstance(step, Conv) and _is_linear(step):
            linear = Linear(x.as_rows().name, "", step.weight.flatten(1), step.bias)
            return self.one_pixel(Value(self.add(linear), "rows", len(step.weight), x.grid), x.kind == "pixels")
        if isinstance(step, Conv) and x.channels is None:
            self._channels[x.name] = step.weight.shape[1] * step.groups
        return replace(after_window(x, step), name=self.add(step))

    def channels(self, x: Value) -> int | None:
        return self._channels.get(x.name) if x.channels is None else x.channels

    def global_pool(self, x: Value, as_planes: bool) -> Value:
        assert x.grid is not None
        rows = Value(self.add(GlobalPool(x.name, "")), "rows", x.channels, x.grid.of_one_pixel())
        return self.one_pixel(rows) if as_planes else rows

    def one_pixel(self, rows: Value, is_last: bool = False) -> Value:
        """Rows as planes of one pixel. Who knows that they are such reads the rows, and nobody this."""
        call = TorchCall(to_planes, (Slot(0),), {})
        name = self.add(Torch([rows.name], "", call, "the same numbers in another shape"))
        return replace(rows, name=name, kind="pixels" if is_last else "planes", rows=rows.name)

    def producer(self, x: Value) -> Step | None:
        """The step that writes a value."""
        return next((step for step in reversed(self.steps) if step.output == x.name), None)


def _is_linear(conv: Conv) -> bool:
    """Whether of a single pixel it makes a single one, by weights alone."""
    is_plain = conv.groups == 1 and conv.gate is conv.boost is conv.picks is conv.before is None and not conv.same
    return is_plain and conv.weight.shape[2:] == (1, 1) and not any((*conv.padding, *conv.extra_padding))


def after_window(x: Value, step: Conv | Pool) -> Value:
    """What a convolution or pooling of x gives, but for the name."""
    assert x.grid is not None
    if isinstance(step, Pool):
        return Value("", "planes", x.channels, _moved(x.grid, step.kernel, step.stride, step.padding))
    outputs, _, height, width = step.weight.shape
    down, right = step.extra_padding
    reach = (step.dilation[0] * (height - 1) + 1 - down, step.dilation[1] * (width - 1) + 1 - right)
    return Value("", "planes", outputs, _moved(x.grid, reach, step.stride, step.padding))


def _moved(grid: Grid, reach: Pair, stride: Pair, padding: Pair) -> Grid:
    """The grid after windows of this reach. What equal strides make of a grid is taken for equal. Where it is not, an
    addition is refused when it runs; torch would refuse it too, unless one of the two is a single pixel."""
    if stride != (1, 1):
        return grid.then(f"stride {stride}")
    lost = (reach[0] - 1 - 2 * padding[0], reach[1] - 1 - 2 * padding[1])
    return grid.then(f"less {lost}") if any(lost) else grid


def planes(x: Any) -> Value:
    """The input of a layer that takes nothing but planes."""
    if not isinstance(x, Value):
        raise NotNative("its input is not a tensor of the network")
    if x.kind not in ("planes", "other"):
        raise NotNative("its input is not an image")
    if x.rows is not None and not x.is_one_pixel:
        raise NotNative("its input is one pixel, repeated")
    return x if x.kind == "planes" else replace(x, kind="planes", grid=Grid(x.name))


def known(x: Any) -> Value:
    """The input of a function that takes any shape: the native one must know it."""
    if not isinstance(x, Value) or x.kind not in ("planes", "rows", "pixels"):
        raise NotNative("the shape of its input is not known beforehand")
    if x.rows is not None and not x.is_one_pixel:
        raise NotNative("its input is one pixel, repeated")
    return x


def same_grid(values: list[Value]) -> bool:
    kind = values[0].kind
    return kind in ("planes", "pixels") and all((v.kind, v.grid) == (kind, values[0].grid) for v in values)


def broadcast(values: list[Value]) -> Value | None:
    """What an elementwise function of these gives, but for the name; None if that is not known."""
    kinds, channels = {value.kind for value in values}, {value.channels for value in values}
    grids = {value.grid for value in values if value.grid is not None}
    larger = {grid for grid in grids if grid.changes != ONE_PIXEL}
    if kinds not in ({"planes"}, {"rows"}) or len({grid.batch for grid in grids}) > 1 or len(larger) > 1:
        return None
    grid = next(iter(larger or grids), None)
    return Value("", values[0].kind, channels.pop() if len(channels) == 1 else None, grid)


def has_forward_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
